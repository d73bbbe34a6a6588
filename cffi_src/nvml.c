/* NVML, in a child that may be lost: a few calls by name, so that nothing of the driver is needed to build. */
#define _GNU_SOURCE
#include "lost.h"
#include "native.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

typedef void *nvml_device;

#define NVML_GPUS 256 /* more than a node can have: a count beyond is nonsense */
#define NVML_MIGS 64

static int (*nvml_init)(void);
static int (*nvml_count)(unsigned *);
static int (*nvml_by_index)(unsigned, nvml_device *);
static int (*nvml_minor)(nvml_device, unsigned *);
static int (*nvml_uuid)(nvml_device, char *, unsigned);
static int (*nvml_mig_mode)(nvml_device, unsigned *, unsigned *);
static int (*nvml_mig_max)(nvml_device, unsigned *);
static int (*nvml_mig_by_index)(nvml_device, unsigned, nvml_device *);
static int (*nvml_gi)(nvml_device, unsigned *);
static int (*nvml_ci)(nvml_device, unsigned *);
/* Those that an NVML may lack. */
static int (*nvml_arch)(nvml_device, int *, int *);
static int (*nvml_brand)(nvml_device, int *);

static int find_functions(void *library)
{
	static const struct {
		void **function;
		const char *name;
	} wanted[] = {
	    {(void **) &nvml_init, "nvmlInit_v2"},
	    {(void **) &nvml_count, "nvmlDeviceGetCount_v2"},
	    {(void **) &nvml_by_index, "nvmlDeviceGetHandleByIndex_v2"},
	    {(void **) &nvml_minor, "nvmlDeviceGetMinorNumber"},
	    {(void **) &nvml_uuid, "nvmlDeviceGetUUID"},
	    {(void **) &nvml_mig_mode, "nvmlDeviceGetMigMode"},
	    {(void **) &nvml_mig_max, "nvmlDeviceGetMaxMigDeviceCount"},
	    {(void **) &nvml_mig_by_index, "nvmlDeviceGetMigDeviceHandleByIndex"},
	    {(void **) &nvml_gi, "nvmlDeviceGetGpuInstanceId"},
	    {(void **) &nvml_ci, "nvmlDeviceGetComputeInstanceId"},
	};

	for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
		if (!(*wanted[i].function = dlsym(library, wanted[i].name)))
			return -1;
	*(void **) &nvml_arch = dlsym(library, "nvmlDeviceGetCudaComputeCapability");
	*(void **) &nvml_brand = dlsym(library, "nvmlDeviceGetBrand");
	return 0;
}

/* What the child sends: devices, and last of all a status. */
struct nvml_frame {
	int last;
	struct gs_nvml_status status;
	struct gs_nvml_device device;
};

static void send_device(const struct gs_nvml_device *device)
{
	struct nvml_frame frame = {.device = *device};

	frame.device.uuid[GS_UUID_SIZE - 1] = '\0';
	if (write(3, &frame, sizeof(frame)) != sizeof(frame))
		_exit(1);
}

__attribute__((noreturn)) static void send_status(int stage, int code)
{
	struct nvml_frame frame = {.last = 1, .status = {.stage = stage, .code = code}};

	if (write(3, &frame, sizeof(frame)) != sizeof(frame))
		_exit(1);
	_exit(0);
}

static void add_kind(nvml_device gpu, struct gs_nvml_device *device)
{
	int major = 0, minor = 0, brand = 0;

	if (nvml_arch && nvml_arch(gpu, &major, &minor) == 0)
		device->arch = 10 * major + minor;
	if (nvml_brand && nvml_brand(gpu, &brand) == 0)
		device->brand = brand;
}

static void send_migs(nvml_device gpu, int index, int minor)
{
	unsigned current = 0, pending = 0, max = 0;

	/* Not an error: a GPU that cannot do MIG, or does not. */
	if (nvml_mig_mode(gpu, &current, &pending) != 0 || !current || nvml_mig_max(gpu, &max) != 0)
		return;
	for (unsigned i = 0; i < max && i < NVML_MIGS; i++) {
		struct gs_nvml_device device = {.gpu = index, .minor = minor, .mig = (int) i, .arch = -1, .brand = -1};
		unsigned gi = 0, ci = 0;
		nvml_device mig;

		if (nvml_mig_by_index(gpu, i, &mig) != 0)
			continue; /* an empty slot */
		device.error = nvml_uuid(mig, device.uuid, sizeof(device.uuid));
		if (!device.error)
			device.error = nvml_gi(mig, &gi);
		if (!device.error)
			device.error = nvml_ci(mig, &ci);
		device.gi = (int) gi;
		device.ci = (int) ci;
		send_device(&device);
	}
}

__attribute__((noreturn)) static void ask_nvml(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	unsigned count = 0;
	int code;

	if (!library)
		send_status(GS_NVML_LOAD, 0);
	if (find_functions(library) < 0)
		send_status(GS_NVML_SYMBOL, 0);
	if ((code = nvml_init()) != 0)
		send_status(GS_NVML_INIT, code);
	if ((code = nvml_count(&count)) != 0)
		send_status(GS_NVML_COUNT, code);
	for (unsigned i = 0; i < count && i < NVML_GPUS; i++) {
		struct gs_nvml_device device = {
		    .gpu = (int) i, .minor = -1, .mig = -1, .gi = -1, .ci = -1, .arch = -1, .brand = -1};
		unsigned minor = 0;
		nvml_device gpu = NULL;

		device.error = nvml_by_index(i, &gpu);
		if (!device.error && !(device.error = nvml_minor(gpu, &minor)))
			device.minor = (int) minor;
		if (!device.error)
			device.error = nvml_uuid(gpu, device.uuid, sizeof(device.uuid));
		if (!device.error)
			add_kind(gpu, &device);
		send_device(&device);
		if (!device.error)
			send_migs(gpu, (int) i, device.minor);
	}
	send_status(GS_NVML_DONE, 0);
}

/* One frame by end: 1, 0 when the child is gone, or -errno. */
static int next_frame(int pipe_end, struct nvml_frame *frame, long end)
{
	for (;;) {
		struct pollfd ready = {.fd = pipe_end, .events = POLLIN};
		long left = end - now_ms();
		ssize_t n;

		if (left <= 0)
			return -ETIMEDOUT;
		if (poll(&ready, 1, (int) left) <= 0)
			continue;
		n = read(pipe_end, frame, sizeof(*frame));
		if (n == 0) /* it ends itself at the same time: whoever is late to see that sees an end, not silence */
			return now_ms() >= end ? -ETIMEDOUT : 0;
		return n == sizeof(*frame) ? 1 : -EPROTO;
	}
}

/*
 * Every GPU and MIG device that NVML of library knows: how many there are, of which the first count are in out.
 * -ETIMEDOUT when it does not answer in deadline_ms, -ECHILD when it ended the child, -EPROTO when it sent nonsense.
 */
int gs_nvml(const char *library, int deadline_ms, struct gs_nvml_device *out, int count, struct gs_nvml_status *status)
{
	long end = now_ms() + deadline_ms;
	struct nvml_frame frame;
	int ends[2], found = 0, got;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	got = start_lost_child(ends[1], deadline_ms);
	if (got > 0)
		ask_nvml(library);
	close(ends[1]);
	while (got >= 0 && (got = next_frame(ends[0], &frame, end)) > 0 && !frame.last) {
		if (found < count)
			out[found] = frame.device;
		found++;
	}
	close(ends[0]);
	if (got <= 0)
		return got ? got : -ECHILD;
	*status = frame.status;
	return found;
}
