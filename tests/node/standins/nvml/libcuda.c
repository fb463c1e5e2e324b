/*
 * A stand-in for libcuda.so.1: the two functions that a look at CUDA needs.  Never shipped.
 *
 * /run/simgpu/cuda holds what cuInit answers: a number (802: the fabric is not ready), or "hang", which sleeps for
 * ever.  Without it CUDA counts the GPUs that have a folder in /proc/driver/nvidia/gpus.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>

int cuInit(unsigned flags)
{
	char word[32] = "0";
	FILE *script = fopen("/run/simgpu/cuda", "r");
	(void)flags;
	if (script) {
		if (!fgets(word, sizeof word, script))
			word[0] = 0;
		fclose(script);
	}
	while (!strncmp(word, "hang", 4))
		pause();
	return atoi(word);
}

int cuDeviceGetCount(int *count)
{
	struct dirent *entry;
	DIR *gpus = opendir("/proc/driver/nvidia/gpus");
	*count = 0;
	while (gpus && (entry = readdir(gpus)))
		*count += entry->d_name[0] != '.';
	if (gpus)
		closedir(gpus);
	return 0;
}
