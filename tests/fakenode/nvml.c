/*
 * libnvidia-ml.so.1 of a simulated node. The node stands in a file beside the library, nvml.txt:
 *   gpu INDEX MINOR UUID MEMORY-MIB NAME…      one line a GPU
 *   mig INDEX SLOT GI CI UUID MEMORY-MIB       one line a MIG device of it
 *   do WHAT [N]                                what is wrong: hang, init N, lost INDEX, hang-gpu INDEX, count N,
 *                                              long-uuid, die, chatter
 * Aggregate memory of a GPU with MIG is for who could open the monitor capability, as in the driver.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NO_PERMISSION 4
#define NOT_FOUND 6
#define GPU_IS_LOST 15

struct device {
	int gpu, slot, minor, gi, ci, memory;
	char uuid[96], name[96];
};

static struct device gpus[64], migs[1024];
static int gpu_count, mig_count, lost = -1, hanging = -1, init_code, wrong_count, long_uuid, loaded;

int nvmlInit_v2(void);
int nvmlInitWithFlags(unsigned flags);
int nvmlShutdown(void);
const char *nvmlErrorString(int code);
int nvmlSystemGetDriverVersion(char *out, unsigned size);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out);
int nvmlDeviceGetMinorNumber(struct device *device, unsigned *out);
int nvmlDeviceGetUUID(struct device *device, char *out, unsigned size);
int nvmlDeviceGetName(struct device *device, char *out, unsigned size);
int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending);
int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count);
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **out);
int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *out);
int nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *out);
int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor);
int nvmlDeviceGetBrand(struct device *device, int *out);

struct memory {
	unsigned long long total, free, used;
};

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *out);

static void hang(void)
{
	for (;;)
		pause();
}

static void load_line(char *line)
{
	struct device *device;
	char what[32];
	int n = 0;

	device = &gpus[gpu_count];
	if (gpu_count < 64 && sscanf(line, "gpu %d %d %95s %d %95[^\n]", &device->gpu, &device->minor, device->uuid,
				     &device->memory, device->name) == 5) {
		device->slot = -1;
		gpu_count++;
		return;
	}
	device = &migs[mig_count];
	if (mig_count < 1024 && sscanf(line, "mig %d %d %d %d %95s %d", &device->gpu, &device->slot, &device->gi,
				       &device->ci, device->uuid, &device->memory) == 6) {
		snprintf(device->name, sizeof(device->name), "MIG device %d", device->slot);
		mig_count++;
		return;
	}
	if (sscanf(line, "do %31s %d", what, &n) < 1)
		return;
	if (strcmp(what, "hang") == 0)
		hang();
	else if (strcmp(what, "die") == 0)
		abort();
	else if (strcmp(what, "init") == 0)
		init_code = n;
	else if (strcmp(what, "lost") == 0)
		lost = n;
	else if (strcmp(what, "hang-gpu") == 0)
		hanging = n;
	else if (strcmp(what, "count") == 0)
		wrong_count = n;
	else if (strcmp(what, "chatter") == 0 && write(STDOUT_FILENO, line, strlen(line)) < 0)
		abort();
	else if (strcmp(what, "long-uuid") == 0)
		long_uuid = 1;
}

int nvmlInit_v2(void)
{
	char path[4096], line[512], *slash;
	Dl_info here;
	FILE *file;

	if (loaded)
		return init_code;
	if (!dladdr((void *) nvmlInit_v2, &here) || strlen(here.dli_fname) + 16 > sizeof(path))
		return INVALID_ARGUMENT;
	strcpy(path, here.dli_fname);
	slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, "nvml.txt");
	file = fopen(path, "re");
	if (!file)
		return INVALID_ARGUMENT;
	while (fgets(line, sizeof(line), file))
		load_line(line);
	fclose(file);
	loaded = 1;
	return init_code;
}

int nvmlInitWithFlags(unsigned flags)
{
	(void) flags;
	return nvmlInit_v2();
}

int nvmlShutdown(void)
{
	return SUCCESS;
}

const char *nvmlErrorString(int code)
{
	return code == GPU_IS_LOST ? "GPU is lost" : code == NO_PERMISSION ? "Insufficient Permissions" : "an error";
}

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
	snprintf(out, size, "580.126.09");
	return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = (unsigned) (wrong_count ? wrong_count : gpu_count);
	return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out)
{
	if ((int) index == lost)
		return GPU_IS_LOST;
	if ((int) index == hanging)
		hang();
	if (index >= (unsigned) gpu_count)
		return INVALID_ARGUMENT;
	*out = &gpus[index];
	return SUCCESS;
}

int nvmlDeviceGetMinorNumber(struct device *device, unsigned *out)
{
	*out = (unsigned) device->minor;
	return SUCCESS;
}

int nvmlDeviceGetUUID(struct device *device, char *out, unsigned size)
{
	if (long_uuid)
		memset(out, 'x', size); /* and no NUL */
	else
		snprintf(out, size, "%s", device->uuid);
	return SUCCESS;
}

int nvmlDeviceGetName(struct device *device, char *out, unsigned size)
{
	snprintf(out, size, "%s", device->name);
	return SUCCESS;
}

static int has_migs(const struct device *gpu)
{
	for (int i = 0; i < mig_count; i++)
		if (migs[i].gpu == gpu->gpu)
			return 1;
	return 0;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
	*current = *pending = (unsigned) has_migs(device);
	return *current ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
	*count = has_migs(device) ? 7 : 0;
	return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **out)
{
	for (int i = 0; i < mig_count; i++) {
		if (migs[i].gpu == device->gpu && migs[i].slot == (int) index) {
			*out = &migs[i];
			return SUCCESS;
		}
	}
	return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *out)
{
	*out = (unsigned) device->gi;
	return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *out)
{
	*out = (unsigned) device->ci;
	return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *out)
{
	int fd;

	if (device->slot < 0 && has_migs(device)) {
		/* ENXIO is an open that was let through, to a driver that is not there. */
		fd = open("/dev/nvidia-caps/nvidia-cap2", O_RDONLY | O_CLOEXEC);
		if (fd >= 0)
			close(fd);
		else if (errno != ENXIO)
			return NO_PERMISSION;
	}
	out->total = (unsigned long long) device->memory << 20;
	out->used = out->total / 8;
	out->free = out->total - out->used;
	return SUCCESS;
}

/* Of Hopper, as the simulated GPUs are. */
int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
	(void) device;
	*major = 9;
	*minor = 0;
	return SUCCESS;
}

int nvmlDeviceGetBrand(struct device *device, int *out)
{
	(void) device;
	*out = 14; /* NVML_BRAND_NVIDIA */
	return SUCCESS;
}
