/*
 * gpushim-runtime: what an engine starts. It hands a command line to the low-level runtime at once, unless that makes
 * a container which may ask for a GPU; then Python edits the bundle first. It may err towards Python only.
 *
 * Nothing here needs more than the kernel: a broken Python, library or settings file must not break a node.
 * gpushim/settings_file.py writes the compiled settings, gpushim/argv.py has the same tables of options.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ETC_CONFIG "/etc/gpushim/config.toml"
#define TOOLKIT_CONFIG "/etc/nvidia-container-runtime/config.toml"
#define DIRECTORIES "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define EX_CONFIG 78

/* ---- the command line ---- */

/* Options with a value and without one, of runc and of crun, before the command and behind a create, run or restore. */
static const char *const global_values[] = {"cgroup-manager", "criu", "log",	  "log-format",
					    "log-level",      "root", "rootless", NULL};
static const char *const global_flags[] = {"debug", "help", "h", "systemd-cgroup", "usage", "version", "v", NULL};
static const char *const command_values[] = {
    "b",	"bundle",	"config",	"console-socket",    "empty-ns",
    "f",	"image-path",	"lsm-profile",	"lsm-mount-context", "manage-cgroups-mode",
    "pid-file", "pidfd-socket", "preserve-fds", "work-path",	     NULL};
static const char *const command_flags[] = {
    "auto-dedup", "d",		"detach",	  "ext-unix-sk", "file-locks",	 "h",	      "help",
    "keep",	  "lazy-pages", "no-new-keyring", "no-pivot",	 "no-subreaper", "shell-job", "tcp-established",
    "usage",	  NULL};

struct call {
	const char *command, *bundle, *config, *log, *log_format;
	int version; /* --version before any command */
	int odd;     /* something that runc and crun read differently, or that is not in the tables */
	int lost;    /* an unknown option before the command: its value may have been taken for the command */
};

static struct call call = {.bundle = ".", .config = "config.json"};

static int listed(const char *const *names, const char *name)
{
	for (; *names; names++)
		if (strcmp(*names, name) == 0)
			return 1;
	return 0;
}

static void take_option(const char *name, const char *value)
{
	if (strcmp(name, "log") == 0 && !call.command)
		call.log = value;
	else if (strcmp(name, "log-format") == 0 && !call.command)
		call.log_format = value;
	else if ((strcmp(name, "bundle") == 0 || strcmp(name, "b") == 0) && call.command)
		call.bundle = value;
	else if ((strcmp(name, "config") == 0 || strcmp(name, "f") == 0) && call.command)
		call.config = value;
}

/* One option; how many words it takes, its own included. next: the word behind it, or NULL. */
static int parse_option(const char *word, const char *next)
{
	const char *body = word + (word[1] == '-' ? 2 : 1);
	const char *equals = strchr(body, '=');
	size_t length = equals ? (size_t) (equals - body) : strlen(body);
	int one_dash = body == word + 1;
	char name[64];

	if (length >= sizeof(name)) {
		call.odd = 1;
		return 1;
	}
	memcpy(name, body, length);
	name[length] = '\0';
	/* `-b=V` and `-bundle V` are --bundle V to runc, and to crun the directories `=V` and `undle`. */
	if (one_dash && call.command && (length > 1 || equals))
		call.odd = 1;
	if (listed(call.command ? command_values : global_values, name)) {
		if (!equals && !next) {
			call.odd = 1;
			return 1;
		}
		take_option(name, equals ? equals + 1 : next);
		return equals ? 1 : 2;
	}
	if (!listed(call.command ? command_flags : global_flags, name)) {
		call.odd = 1; /* `--bund V` of crun, or an option of a runtime newer than this table */
		call.lost |= !call.command;
	}
	if (!call.command && (strcmp(name, "version") == 0 || (one_dash && strcmp(name, "v") == 0)))
		call.version = 1;
	return 1;
}

static void parse(int argc, char **argv)
{
	for (int i = 1; i < argc;) {
		if (strcmp(argv[i], "--") == 0) {
			if (!call.command && i + 1 < argc)
				call.command = argv[i + 1];
			return;
		}
		if (argv[i][0] == '-' && argv[i][1]) {
			i += parse_option(argv[i], argv[i + 1]);
			continue;
		}
		if (!call.command)
			call.command = argv[i];
		i++;
	}
}

static int makes_container(void)
{
	return call.command && (strcmp(call.command, "create") == 0 || strcmp(call.command, "run") == 0 ||
				strcmp(call.command, "restore") == 0);
}

/* Where the command is not certain, any of the words may be it. */
static int may_make_container(int argc, char **argv)
{
	static const char *const makers[] = {"create", "run", "restore", NULL};

	if (makes_container())
		return 1;
	for (int i = 1; call.lost && i < argc; i++)
		if (listed(makers, argv[i]))
			return 1;
	return 0;
}

/* ---- messages ---- */

static void append_escaped(char *out, size_t room, const char *text)
{
	size_t n = strlen(out);

	for (; *text && n + 7 < room; text++) {
		unsigned char c = (unsigned char) *text;

		if (c == '"' || c == '\\')
			n += (size_t) snprintf(out + n, room - n, "\\%c", c);
		else if (c == '\n')
			n += (size_t) snprintf(out + n, room - n, "\\n");
		else if (c < 0x20 || c == 0x7f)
			n += (size_t) snprintf(out + n, room - n, "\\u%04x", c);
		else {
			out[n++] = (char) c;
			out[n] = '\0';
		}
	}
}

/* The text to the file of --log too, in the runtime's own form: that is where engines look. */
static void log_error(const char *text)
{
	int json = call.log_format && strcmp(call.log_format, "json") == 0;
	char line[8192], when[32];
	time_t now = time(NULL);
	struct tm utc;
	int fd;

	if (!call.log || !gmtime_r(&now, &utc))
		return;
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
	snprintf(line, sizeof(line), json ? "{\"level\":\"error\",\"msg\":\"" : "time=\"%s\" level=error msg=\"", when);
	append_escaped(line, sizeof(line) - 64, text);
	if (json)
		snprintf(line + strlen(line), sizeof(line) - strlen(line), "\",\"time\":\"%s\"}\n", when);
	else
		strcat(line, "\"\n");
	fd = open(call.log, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	if (write(fd, line, strlen(line)) < 0)
		errno = 0; /* nowhere left to say so */
	close(fd);
}

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	char text[4096] = "gpushim: ";
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text + strlen(text), sizeof(text) - strlen(text), format, arguments);
	va_end(arguments);
	log_error(text);
	dprintf(STDERR_FILENO, "%s\n", text);
	exit(1);
}

/* ---- the compiled settings ---- */

static char settings[65536]; /* NUL-terminated records, `key=value` */
static size_t settings_size;

/* Which config.toml counts, and whether the environment names it; as settings.select does. */
static const char *select_config(int *named)
{
	static const char *const variables[] = {"GPUSHIM_CONFIG", "NVIDIA_CTK_CONFIG_FILE_PATH", NULL};
	struct stat st;

	*named = 1;
	for (const char *const *v = variables; *v; v++) {
		const char *value = getenv(*v);

		if (value && *value)
			return value;
	}
	*named = 0;
	if (stat(ETC_CONFIG, &st) == 0)
		return ETC_CONFIG;
	return stat(TOOLKIT_CONFIG, &st) == 0 ? TOOLKIT_CONFIG : "";
}

/* The value of the record at *at, which moves behind it; NULL when it has another key or the settings end. */
static const char *record(const char **at, const char *key)
{
	size_t n = strlen(key);
	const char *here = *at;

	if (here >= settings + settings_size || strncmp(here, key, n) != 0 || here[n] != '=')
		return NULL;
	*at = here + strlen(here) + 1;
	return here + n + 1;
}

static int owned_and_private(const struct stat *st)
{
	return st->st_uid == geteuid() && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

static int read_file(const char *directory, const char *name)
{
	int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct stat st;
	ssize_t n = -1;
	int fd;

	if (dir < 0)
		return -1;
	fd = fstat(dir, &st) == 0 && owned_and_private(&st)
		 ? openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
		 : -1;
	close(dir);
	if (fd < 0)
		return -1;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && owned_and_private(&st))
		n = read(fd, settings, sizeof(settings));
	close(fd);
	if (n <= 0 || (size_t) n == sizeof(settings) || settings[n - 1])
		return -1;
	settings_size = (size_t) n;
	return 0;
}

enum freshness { NONE, STALE, FRESH };

/* Whether what was read is of this program and of config, and still what that file says. */
static enum freshness judge_settings(const char *config)
{
	const char *at = settings, *value;
	char identity[128] = "";
	struct stat st;

	if (!(value = record(&at, "gpushim-settings")) || strcmp(value, VERSION) != 0 ||
	    !(value = record(&at, "config")) || strcmp(value, config) != 0 || !(value = record(&at, "identity"))) {
		settings_size = 0;
		return NONE;
	}
	if (*config && stat(config, &st) == 0)
		snprintf(identity, sizeof(identity), "%llu %llu %llu %llu", (unsigned long long) st.st_dev,
			 (unsigned long long) st.st_ino, (unsigned long long) st.st_size,
			 (unsigned long long) st.st_mtim.tv_sec * 1000000000ULL +
			     (unsigned long long) st.st_mtim.tv_nsec);
	return strcmp(value, identity) == 0 ? FRESH : STALE;
}

static enum freshness read_settings(void)
{
	const char *state = getenv("GPUSHIM_STATE"), *run = getenv("XDG_RUNTIME_DIR"), *config;
	char name[64] = "settings", directory[PATH_MAX];
	int named;

	config = select_config(&named);
	if (named) {
		uint64_t hash =
		    0xcbf29ce484222325; /* FNV-1a: two engines with two files do not share one compiled form */

		for (const char *p = config; *p; p++)
			hash = (hash ^ (unsigned char) *p) * 0x100000001b3;
		snprintf(name, sizeof(name), "settings-%016llx", (unsigned long long) hash);
	}
	settings_size = 0;
	if (state && *state)
		return read_file(state, name) == 0 ? judge_settings(config) : NONE;
	if (read_file("/var/lib/gpushim", name) == 0)
		return judge_settings(config);
	if (!run || !*run || snprintf(directory, sizeof(directory), "%s/gpushim", run) >= (int) sizeof(directory))
		return NONE;
	return read_file(directory, name) == 0 ? judge_settings(config) : NONE;
}

/* Each record from `candidate=` on: calls use(key, value) until it returns nonzero. */
static int each_record(int (*use)(const char *key, const char *value))
{
	const char *end = settings + settings_size;
	int found = 0;

	for (const char *at = settings; at < end && !found; at += strlen(at) + 1) {
		char key[256];
		const char *equals = strchr(at, '=');

		if (!equals || (size_t) (equals - at) >= sizeof(key))
			continue;
		memcpy(key, at, (size_t) (equals - at));
		key[equals - at] = '\0';
		found = use(key, equals + 1);
	}
	return found;
}

/* ---- the low-level runtime ---- */

static char self[PATH_MAX], low_level[PATH_MAX], handler_key[256], tried[1024];
static struct stat self_stat;

/* Whether path is a program and not this one. */
static int runs(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || access(path, X_OK) < 0)
		return 0;
	if (st.st_dev == self_stat.st_dev && st.st_ino == self_stat.st_ino)
		return 0;
	return snprintf(low_level, sizeof(low_level), "%s", path) < (int) sizeof(low_level);
}

/* name in the directories of list; what is not absolute is left out, since the cwd is a bundle. */
static int runs_in(const char *list, const char *name)
{
	for (const char *at = list; at && *at;) {
		const char *end = strchrnul(at, ':');
		char path[PATH_MAX];
		int n = snprintf(path, sizeof(path), "%.*s/%s", (int) (end - at), at, name);

		if (*at == '/' && n < (int) sizeof(path) && runs(path))
			return 1;
		at = *end ? end + 1 : end;
	}
	return 0;
}

static int try_candidate(const char *name)
{
	size_t n = strlen(tried);

	snprintf(tried + n, sizeof(tried) - n, "%s%s", n ? ", " : "", name);
	if (strchr(name, '/'))
		return *name == '/' && runs(name);
	return runs_in(getenv("PATH"), name) || runs_in(DIRECTORIES, name);
}

static int of_handler(const char *key, const char *value)
{
	return strcmp(key, handler_key) == 0 && try_candidate(value);
}

static int of_all(const char *key, const char *value)
{
	return strcmp(key, "candidate") == 0 && try_candidate(value);
}

static int any_handler_record(const char *key, const char *value)
{
	(void) value;
	return strcmp(key, handler_key) == 0;
}

static int any_candidate_record(const char *key, const char *value)
{
	(void) value;
	return strcmp(key, "candidate") == 0;
}

static const char *find_runtime(void)
{
	int found;

	tried[0] = '\0';
	if (each_record(any_handler_record))
		found = each_record(of_handler);
	else if (each_record(any_candidate_record))
		found = each_record(of_all);
	else
		found = try_candidate("runc") || try_candidate("crun");
	if (!found)
		die("GS0701: no low-level runtime: none of %s is a program other than this one; looked in PATH and in "
		    "%s\n"
		    "hint: install runc or crun, or name one by nvidia-container-runtime.runtimes in config.toml",
		    tried, DIRECTORIES);
	return low_level;
}

__attribute__((noreturn)) static void become_runtime(char **argv)
{
	argv[0] = (char *) find_runtime();
	execv(low_level, argv);
	die("GS0702: %s: %s", low_level, strerror(errno));
}

/* ---- does the container ask? ---- */

static const char *const triggers[] = {"NVIDIA_VISIBLE_DEVICES",
				       "CUDA_VERSION",
				       "nvidia-container-devices",
				       "nvidia-container-runtime-hook",
				       "nvidia-container-toolkit",
				       "gpushim-hook",
				       "dev.gpushim/",
				       NULL};

/* A window of config.json: what is scanned at once, behind the end of what was scanned before. */
#define OVERLAP 4096
static char window[OVERLAP + 65536];
static size_t window_size;

static int in_window(const char *text)
{
	return *text && memmem(window, window_size, text, strlen(text)) != NULL;
}

static int configured_trigger(const char *key, const char *value)
{
	/* One that is longer than the overlap could hide across two windows. */
	return strcmp(key, "trigger") == 0 && (strlen(value) > OVERLAP || in_window(value));
}

/* An escape that could spell a character of a trigger: all but what engines write for <, >, &, quotes and controls. */
static int spells(const char *escape, size_t size)
{
	static const char digits[] = "0123456789abcdefABCDEF";
	unsigned value;

	if (size < 2)
		return 1;
	if (escape[1] != 'u')
		return escape[1] == '/';
	if (size < 6)
		return 1;
	for (int i = 2; i < 6; i++)
		if (!memchr(digits, escape[i], sizeof(digits) - 1))
			return 1; /* no JSON: Python's to say */
	if (sscanf(escape + 2, "%4x", &value) != 1)
		return 1;
	return value >= 0x20 && value < 0x7f && !strchr("<>&\"\\'", (int) value);
}

/* final: nothing follows, so that a cut escape is an odd one and not one that the next window completes. */
static int hides(int final)
{
	const char *end = window + window_size, *at = window;

	while ((at = memchr(at, '\\', (size_t) (end - at)))) {
		if (end - at < 6 && !final)
			return 0;
		if (spells(at, (size_t) (end - at)))
			return 1;
		at += 2;
		if (at >= end)
			return 0;
	}
	return 0;
}

static int triggered(int with_settings)
{
	for (const char *const *t = triggers; *t; t++)
		if (in_window(*t))
			return 1;
	return with_settings && each_record(configured_trigger);
}

/* Whether config.json may ask for something. What cannot be read is for Python, or the runtime, to tell. */
static int asks(int with_settings)
{
	char path[PATH_MAX];
	struct stat st;
	size_t kept = 0;
	ssize_t n;
	int fd, answer = -1, empty = 1;

	if (call.odd || snprintf(path, sizeof(path), "%s/%s", call.bundle, call.config) >= (int) sizeof(path))
		return 1;
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return 1;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		answer = 1;
	while (answer < 0) {
		n = read(fd, window + kept, sizeof(window) - kept);
		if (n < 0 && errno == EINTR)
			continue;
		window_size = kept + (size_t) (n > 0 ? n : 0);
		if (n < 0)
			answer = 1;
		else if (n == 0)
			answer = empty || hides(1);
		else if (triggered(with_settings) || hides(0))
			answer = 1;
		empty = 0;
		/* An escape at the end, or a trigger, may go on in the next window. */
		kept = window_size < OVERLAP ? window_size : OVERLAP;
		/* In the middle of a run of backslashes nobody can tell which of them begins an escape. */
		if (window_size > kept && window[window_size - kept - 1] == '\\' && window[window_size - kept] == '\\')
			answer = 1;
		memmove(window, window + window_size - kept, kept);
	}
	close(fd);
	return answer;
}

/* ---- Python ---- */

static char python[PATH_MAX], boot[PATH_MAX];

static int find_python(void)
{
	static const char *const sites[] = {"site-packages", "dist-packages", NULL};
	char *slash = strrchr(self, '/');
	int directory = slash ? (int) (slash - self) : 0;

	if (snprintf(python, sizeof(python), "%.*s/" PYTHON, directory, self) >= (int) sizeof(python))
		return -1;
	for (const char *const *site = sites; *site; site++)
		if (snprintf(boot, sizeof(boot), "%.*s/../lib/" PYTHON "/%s/gpushim/_boot.py", directory, self, *site) <
			(int) sizeof(boot) &&
		    access(boot, R_OK) == 0)
			return access(python, X_OK);
	return -1;
}

/* Have Python compile the settings; whether it works at all. */
static int compile_settings(void)
{
	int status;
	pid_t child;

	if (find_python() < 0)
		return 0;
	child = fork();
	if (child < 0)
		return 0;
	if (child == 0) {
		int null = open("/dev/null", O_RDWR);

		/* What it has to say is told by the create that needs the settings. */
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		execl(python, python, "-I", "-S", boot, "compile", (char *) NULL);
		_exit(127);
	}
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return 0;
	return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == EX_CONFIG);
}

/* SIGPIPE and SIGXFSZ, which Python ignores: whether they were ignored already, for Python to put back. */
static int ignored_signals(void)
{
	static const int numbers[] = {SIGPIPE, SIGXFSZ};
	struct sigaction action;
	int mask = 0;

	for (int i = 0; i < 2; i++)
		if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler == SIG_IGN)
			mask |= 1 << i;
	return mask;
}

__attribute__((noreturn)) static void no_python(const char *why)
{
	die("GS0703: %s: %s, so that a container which asks for a GPU cannot be prepared\n"
	    "hint: install gpushim anew: its interpreter stands beside " PYTHON " in the same directory",
	    python[0] ? python : PYTHON, why);
}

__attribute__((noreturn)) static void become_python(const char *handler, int argc, char **argv)
{
	char ignored[16];
	char **words = calloc((size_t) argc + 9, sizeof(*words));
	int n = 0;

	if (!words || find_python() < 0)
		no_python("does not start");
	snprintf(ignored, sizeof(ignored), "%d", ignored_signals());
	words[n++] = python;
	words[n++] = (char *) "-I";
	words[n++] = (char *) "-S";
	words[n++] = boot;
	words[n++] = (char *) "shim";
	words[n++] = (char *) handler;
	words[n++] = (char *) find_runtime();
	words[n++] = ignored;
	memcpy(words + n, argv + 1, (size_t) argc * sizeof(*words)); /* the NULL behind the last too */
	execv(python, words);
	no_python(strerror(errno));
}

/* ---- the hook ---- */

/* Engines may hand a hook the image's environment : what steers the loader must not reach Python. */
static void drop_loader_variables(void)
{
	for (char **entry = environ; *entry;) {
		const char *equals = strchr(*entry, '=');
		char name[256];

		if (equals && (size_t) (equals - *entry) < sizeof(name) &&
		    (strncmp(*entry, "LD_", 3) == 0 || strncmp(*entry, "GCONV_PATH=", 11) == 0 ||
		     strncmp(*entry, "GLIBC_TUNABLES=", 15) == 0)) {
			memcpy(name, *entry, (size_t) (equals - *entry));
			name[equals - *entry] = '\0';
			unsetenv(name);
			continue; /* the next entry stands here now */
		}
		entry++;
	}
}

int main(int argc, char **argv)
{
	const char *handler = argc > 0 && argv[0] ? argv[0] : "gpushim-runtime";
	enum freshness fresh;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (argc < 1)
		die("GS0704: started without a name");
	if (n < 0 || stat("/proc/self/exe", &self_stat) < 0)
		die("GS0705: /proc/self/exe: %s", strerror(errno));
	handler = strrchr(handler, '/') ? strrchr(handler, '/') + 1 : handler;
	if (strncmp(handler, "gpushim-hook", 12) == 0) {
		drop_loader_variables();
		die("GS0706: gpushim-hook has no command in this version");
	}
	snprintf(handler_key, sizeof(handler_key), "candidate:%s", handler);
	parse(argc, argv);
	fresh = read_settings();
	if (call.version) {
		printf("gpushim-runtime version " VERSION "\n");
		fflush(stdout);
		become_runtime(argv);
	}
	if (!may_make_container(argc, argv))
		become_runtime(argv);
	if (fresh != FRESH) {
		int works = compile_settings();

		fresh = read_settings();
		if (!works) {
			if (asks(fresh != NONE))
				no_python("does not start");
			become_runtime(argv);
		}
		if (fresh != FRESH) /* it can say why, and lets pass what asks for nothing */
			become_python(handler, argc, argv);
	}
	if (asks(1))
		become_python(handler, argc, argv);
	become_runtime(argv);
}
