/* For crun up to 1.8 on cgroup v2 where CAP_SYS_RESOURCE is missing: it wants a limit that kernels since 5.11 do not
 * use. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/resource.h>

int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit)
{
	int (*real)(__rlimit_resource_t, const struct rlimit *);

	if (resource == RLIMIT_MEMLOCK)
		return 0;
	*(void **) &real = dlsym(RTLD_NEXT, "setrlimit");
	return real(resource, limit);
}

int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *limit)
{
	int (*real)(__rlimit_resource_t, const struct rlimit64 *);

	if (resource == RLIMIT_MEMLOCK)
		return 0;
	*(void **) &real = dlsym(RTLD_NEXT, "setrlimit64");
	return real(resource, limit);
}
