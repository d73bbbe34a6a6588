/* Every entry point of native.c once, for a build with sanitizers: native_driver DIRECTORY FIFO NVML. */
#define _GNU_SOURCE
#include "native.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct gs_capability small[1], large[64];
	struct gs_file *files = calloc(2, sizeof(*files));
	struct gs_nvml_device devices[16];
	struct gs_nvml_status status;
	struct gs_bpf_info info;
	const struct gs_place nowhere = {.ns = -1, .root = "/none"};
	struct gs_stat stats[2];
	struct gs_elf elf;
	unsigned ids[2], flags;
	char paths[4096];
	int root, fd, n;

	if (argc != 4 || !files)
		return 2;
	n = snprintf(paths, sizeof(paths), "/dev/null%c%s/none", '\0', argv[1]);
	if (n < 0 || n >= (int) sizeof(paths))
		return 2;
	gs_stat_many(paths, 2, stats);
	printf("stat %d %d:%d %d\n", stats[0].error, stats[0].major, stats[0].minor, stats[1].error);
	printf("capabilities %d %d %d\n", gs_capabilities(argv[1], small, 1), gs_capabilities(argv[1], large, 64),
	       gs_capabilities("/none", large, 64));
	n = snprintf(paths, sizeof(paths), "%s%c/proc/version", argv[2], '\0');
	if (n < 0 || n >= (int) sizeof(paths))
		return 2;
	n = gs_read_files(paths, 2, 50, 200, files);
	printf("files %d %d %d %d\n", n, files[0].error, files[1].error, files[1].size > 0);
	printf("too many %d\n", gs_read_files(paths, 1 << 20, 50, 200, files));
	fd = open(argv[3], O_RDONLY);
	n = gs_elf(fd, &elf);
	printf("elf %d %d %s\n", n, elf.bits, elf.soname);
	close(fd);
	fd = open("/proc/version", O_RDONLY);
	printf("elf %d\n", gs_elf(fd, &elf));
	close(fd);
	fd = gs_give(&nowhere, NULL, 0, 1000, &n);
	printf("give %d %d\n", fd, n);
	root = open(argv[1], O_PATH | O_DIRECTORY);
	fd = gs_open_in_root(root, "../../mig", O_PATH, 0);
	printf("root %d %d\n", fd >= 0, gs_open_in_root(root, "none", O_RDONLY, 0));
	close(fd);
	printf("bpf %d %d %d %d\n", gs_bpf_query(root, 0, ids, 2, &flags), gs_bpf_query(root, 1, ids, 0, &flags),
	       gs_bpf_info(root, &info, NULL, 0), gs_bpf_attach(root, root, 0, -1));
	close(root);
	free(files);
	n = gs_nvml(argv[3], 2000, devices, 16, &status);
	printf("nvml %d %d %d\n", n, status.stage, n > 1 ? devices[1].gi : -1);
	n = gs_nvml("/none", 2000, devices, 16, &status);
	printf("nvml %d %d\n", n, status.stage);
	return 0;
}
