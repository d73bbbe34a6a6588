/*
 * What a program in a container finds of the driver: `loads NAME...` opens each library by name and prints "NAME ok",
 * or "NAME" and the loader's words. Of libcuda it calls cuInit, of NVML it counts the GPUs.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int count_gpus(void *nvml)
{
	int (*init)(void) = (int (*)(void)) dlsym(nvml, "nvmlInit_v2");
	int (*count)(unsigned *) = (int (*)(unsigned *)) dlsym(nvml, "nvmlDeviceGetCount_v2");
	unsigned n = 0;

	return init && count && init() == 0 && count(&n) == 0 ? (int) n : -1;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		void *library = dlopen(argv[i], RTLD_NOW);
		int (*start)(unsigned);

		if (!library) {
			printf("%s %s\n", argv[i], dlerror());
			continue;
		}
		start = (int (*)(unsigned)) dlsym(library, "cuInit");
		if (strncmp(argv[i], "libnvidia-ml", 12) == 0)
			printf("%s %d GPUs\n", argv[i], count_gpus(library));
		else
			printf("%s %s\n", argv[i], !start || start(0) == 0 ? "ok" : "cuInit failed");
	}
	return 0;
}
