/*
 * A scripted stand-in for libnvidia-ml.so.1.  Never shipped.
 *
 * It answers what nvidia-ml-py asks for, from a script that is read again at
 * every call, so that a test moves the hardware under a running process.
 * The script is $SIMGPU_NVML or /run/simgpu/nvml; without one the driver is
 * "not loaded" (9).  One statement a line, '#' begins a comment, unknown words
 * are ignored:
 *
 *   driver 550.54.15        nvml 12.550.54.15        cuda 12040
 *   loaded no                               init answers 9
 *   gpu 0 uuid=GPU-… bus=0000:07:00.0 minor=0 [serial=…] [name=to the end of the line]
 *   init [error=999] [delay=MS]             may be repeated; the first that is live counts
 *   count [error=15]
 *   handle [gpu=0] [error=15] [delay=MS]    per GPU, or for every GPU without gpu=
 *   hang init|count|handle [gpu=0] [deaf]   sleeps for ever; deaf: ignores SIGTERM, SIGINT, SIGHUP
 *   show 7                                  only the first 7 GPUs are there
 *   omit 3                                  this GPU is not there
 *   uuid 3 GPU-…                            this GPU answers with another UUID
 *   shuffle [N]                             indices rotated by N, or by chance at each init
 *   check-devices on|off                    default: on where /dev/nvidiactl exists
 *   persistence off     fabric STATE STATUS [gpu=N]
 *   mig on|off [gpu=N] [pending=on|off]
 *   mig-device 0 uuid=MIG-… gi=1 ci=0 profile=1g.10gb    one more on GPU 0
 *   remap [gpu=N] [pending=1] [failed=1]    ecc [gpu=N] [current=1] [pending=0]
 *   recovery ACTION [gpu=N]                 the field of newer drivers (1: reset, 2: reboot)
 *   virtualization MODE [gpu=N]
 *   refuse QUESTION error=3 [gpu=N]         mig, migs, fabric, persistence, remap, ecc, recovery,
 *                                           virtualization; answers with this error
 *   xid 79 gpu=3 at=T                       one critical event, delivered after T
 *
 * until=T or from=T on a statement bounds it in time; T is CLOCK_BOOTTIME in
 * seconds.  A hang with until= goes on afterwards as if nothing had been.
 *
 * nvmlInit and nvmlShutdown append "BOOTTIME PID COMM init|shutdown RESULT" to
 * "<script>.calls" where that file exists; a hang writes "init hang" when it begins.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
	NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, UNKNOWN = 999,
};

enum { MAX_GPUS = 64, MAX_EVENTS = 64, MAX_MIGS = 128 };

/* What a GPU may be asked beyond its identity. */
enum { Q_MIG, Q_MIGS, Q_FABRIC, Q_PERSISTENCE, Q_REMAP, Q_ECC, Q_RECOVERY, Q_VIRTUALIZATION, QUESTIONS };
static const char *const questions[QUESTIONS] = {
	"mig", "migs", "fabric", "persistence", "remap", "ecc", "recovery", "virtualization",
};

struct state {
	int mig, mig_pending, fabric, fabric_status, remap_pending, remap_failed, ecc, ecc_pending;
	int recovery, virtualization, refuse[QUESTIONS];
};

struct mig_device {
	int gpu, gi, ci;
	char uuid[96], profile[32];
};

struct gpu {
	int id, minor;
	char uuid[96], bus[32], name[96], serial[32];
};

struct script {
	char driver[80], nvml[80];
	int cuda, loaded, check_devices; /* check_devices: -1 = where the node exists */
	int init_error, init_delay_ms, count_error;
	int hang_init, hang_count, hang_handle, hang_gpu, deaf;
	int show, shuffle, persistence_off;
	int handle_error[MAX_GPUS], handle_delay_ms[MAX_GPUS], omit[MAX_GPUS];
	struct gpu gpus[MAX_GPUS];
	struct state states[MAX_GPUS];
	struct mig_device migs[MAX_MIGS];
	int n, n_migs;
};

struct pci_info {
	char bus_legacy[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
};
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct fabric { unsigned char cluster[16]; unsigned status, clique; unsigned char state; };
struct fabric_v { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned health; };
struct field { unsigned id, scope; long long timestamp, latency; unsigned value_type; int rc; unsigned long long value; };
struct event { void *device; unsigned long long type, data; unsigned gi, ci; };
struct event_set { double born; int delivered; };

static int users, shuffle_by_chance;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sleep_ms(long ms)
{
	struct timespec t = { ms / 1000, (ms % 1000) * 1000000 };

	while (nanosleep(&t, &t) == -1 && errno == EINTR)
		;
}

static const char *path(void)
{
	const char *p = getenv("SIMGPU_NVML");

	return p && *p ? p : "/run/simgpu/nvml";
}

/* The value of "key=" in a line, to the next blank (name= takes the rest). */
static int text(const char *line, const char *key, char *out, size_t size)
{
	size_t len = strlen(key);

	for (const char *p = line; (p = strstr(p, key)); p += len) {
		if ((p > line && p[-1] != ' ') || p[len] != '=')
			continue;
		p += len + 1;
		snprintf(out, size, "%.*s", (int)strcspn(p, strcmp(key, "name") ? " \n" : "\n"), p);
		return 1;
	}
	return 0;
}

static int number(const char *line, const char *key, int otherwise)
{
	char value[32];

	return text(line, key, value, sizeof value) ? atoi(value) : otherwise;
}

static int is_live(const char *line)
{
	char value[32];

	if (text(line, "until", value, sizeof value) && now() >= atof(value))
		return 0;
	return !(text(line, "from", value, sizeof value) && now() < atof(value));
}

static void read_gpu(struct script *s, const char *line, int id)
{
	struct gpu *g = &s->gpus[s->n];

	if (s->n == MAX_GPUS || id < 0 || id >= MAX_GPUS)
		return;
	g->id = id;
	g->minor = number(line, "minor", id);
	strcpy(g->name, "NVIDIA H100 80GB HBM3");
	text(line, "name", g->name, sizeof g->name);
	text(line, "uuid", g->uuid, sizeof g->uuid);
	text(line, "bus", g->bus, sizeof g->bus);
	text(line, "serial", g->serial, sizeof g->serial);
	s->n++;
}

static void read_mig_device(struct script *s, const char *line, int gpu)
{
	struct mig_device *m = &s->migs[s->n_migs];

	if (s->n_migs == MAX_MIGS)
		return;
	m->gpu = gpu;
	m->gi = number(line, "gi", 1);
	m->ci = number(line, "ci", 0);
	strcpy(m->profile, "1g.10gb");
	text(line, "profile", m->profile, sizeof m->profile);
	text(line, "uuid", m->uuid, sizeof m->uuid);
	s->n_migs++;
}

static int is_on(const char *line, const char *key, int otherwise)
{
	char value[8];

	return text(line, key, value, sizeof value) ? !strcmp(value, "on") : otherwise;
}

/* A statement about the state of one GPU, or of every GPU without gpu=. */
static void read_state(struct state *t, const char *word, const char *line, const char *arg)
{
	if (!strcmp(word, "mig")) {
		t->mig = !strncmp(arg, "on", 2);
		t->mig_pending = is_on(line, "pending", t->mig);
	} else if (!strcmp(word, "fabric")) {
		sscanf(arg, "%d %d", &t->fabric, &t->fabric_status);
	} else if (!strcmp(word, "remap")) {
		t->remap_pending = number(line, "pending", t->remap_pending);
		t->remap_failed = number(line, "failed", t->remap_failed);
	} else if (!strcmp(word, "ecc")) {
		t->ecc = number(line, "current", t->ecc);
		t->ecc_pending = number(line, "pending", t->ecc_pending);
	} else if (!strcmp(word, "recovery")) {
		t->recovery = atoi(arg);
	} else if (!strcmp(word, "virtualization")) {
		t->virtualization = atoi(arg);
	} else if (!strcmp(word, "refuse")) {
		for (int q = 0; q < QUESTIONS; q++)
			if (!strncmp(arg, questions[q], strlen(questions[q])) && arg[strlen(questions[q])] == ' ')
				t->refuse[q] = number(line, "error", NOT_SUPPORTED);
	}
}

static void read_fault(struct script *s, const char *word, const char *line, const char *arg)
{
	int gpu = number(line, "gpu", -1);

	if (!strcmp(word, "init")) {
		if (!s->init_error)
			s->init_error = number(line, "error", 0);
		if (!s->init_delay_ms)
			s->init_delay_ms = number(line, "delay", 0);
	} else if (!strcmp(word, "count")) {
		s->count_error = number(line, "error", 0);
	} else if (!strcmp(word, "handle")) {
		for (int i = 0; i < MAX_GPUS; i++) {
			if (gpu >= 0 && i != gpu)
				continue;
			s->handle_error[i] = number(line, "error", s->handle_error[i]);
			s->handle_delay_ms[i] = number(line, "delay", s->handle_delay_ms[i]);
		}
	} else if (!strcmp(word, "hang")) {
		s->hang_init |= !strncmp(arg, "init", 4);
		s->hang_count |= !strncmp(arg, "count", 5);
		s->hang_handle |= !strncmp(arg, "handle", 6);
		s->hang_gpu = gpu;
		s->deaf |= strstr(line, " deaf") != NULL;
	}
}

static void read_line(struct script *s, char *line)
{
	char word[24] = "", other[96];
	int after = 0, id;
	const char *arg;

	line[strcspn(line, "#\n")] = 0;
	if (sscanf(line, "%23s %n", word, &after) != 1 || !is_live(line))
		return;
	arg = after ? line + after : "";
	id = atoi(arg);
	if (!strcmp(word, "driver"))
		sscanf(arg, "%79s", s->driver);
	else if (!strcmp(word, "nvml"))
		sscanf(arg, "%79s", s->nvml);
	else if (!strcmp(word, "cuda"))
		s->cuda = id;
	else if (!strcmp(word, "loaded"))
		s->loaded = strncmp(arg, "no", 2) != 0;
	else if (!strcmp(word, "gpu"))
		read_gpu(s, line, id);
	else if (!strcmp(word, "show"))
		s->show = id;
	else if (!strcmp(word, "omit") && id >= 0 && id < MAX_GPUS)
		s->omit[id] = 1;
	else if (!strcmp(word, "shuffle"))
		s->shuffle = *arg >= '0' && *arg <= '9' ? id : shuffle_by_chance;
	else if (!strcmp(word, "check-devices"))
		s->check_devices = !strncmp(arg, "on", 2);
	else if (!strcmp(word, "persistence"))
		s->persistence_off = !strncmp(arg, "off", 3);
	else if (!strcmp(word, "mig-device"))
		read_mig_device(s, line, id);
	else if (!strcmp(word, "uuid") && sscanf(arg, "%*d %95s", other) == 1)
		for (int i = 0; i < s->n; i++)
			if (s->gpus[i].id == id)
				strcpy(s->gpus[i].uuid, other);
	read_fault(s, word, line, arg);
	for (int i = 0, gpu = number(line, "gpu", -1); i < MAX_GPUS; i++)
		if (gpu < 0 || gpu == i)
			read_state(&s->states[i], word, line, arg);
}

/* What the script says at this moment; GPUs that are not to be seen are gone from the list. */
static struct script *read_script(struct script *s)
{
	char line[512];
	FILE *f = fopen(path(), "re");
	int kept = 0;

	memset(s, 0, sizeof *s);
	strcpy(s->driver, "550.54.15");
	strcpy(s->nvml, "12.550.54.15");
	s->cuda = 12040;
	s->loaded = f != NULL;
	s->check_devices = s->show = s->hang_gpu = -1;
	for (int i = 0; i < MAX_GPUS; i++)
		s->states[i].ecc = s->states[i].ecc_pending = 1;
	if (!f)
		return s;
	while (fgets(line, sizeof line, f))
		read_line(s, line);
	fclose(f);
	for (int i = 0; i < s->n; i++)
		if (!s->omit[s->gpus[i].id] && (s->show < 0 || kept < s->show))
			s->gpus[kept++] = s->gpus[i];
	s->n = kept;
	return s;
}

static void record(const char *what, const char *result)
{
	char file[512], comm[32] = "?", line[128];
	int fd, len;

	fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		ssize_t got = read(fd, comm, sizeof comm - 1);

		comm[got > 0 ? got - 1 : 0] = 0;
		close(fd);
	}
	snprintf(file, sizeof file, "%s.calls", path());
	fd = open(file, O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd < 0)
		return;
	len = snprintf(line, sizeof line, "%.6f %d %s %s %s\n", now(), (int)getpid(), comm, what, result);
	if (write(fd, line, (size_t)len) != len)
		errno = 0; /* a full disk loses the line, nothing else */
	close(fd);
}

static int hangs(const struct script *s, const char *what, int gpu)
{
	if (!strcmp(what, "init"))
		return s->hang_init;
	if (!strcmp(what, "count"))
		return s->hang_count;
	return s->hang_handle && (s->hang_gpu < 0 || s->hang_gpu == gpu);
}

/* Reads the script for one call, and stays inside as long as the script says that it hangs. */
static struct script *enter(struct script *s, const char *what, int gpu)
{
	int began = 0;

	while (hangs(read_script(s), what, gpu)) {
		if (!began++ && !strcmp(what, "init"))
			record(what, "hang");
		if (s->deaf) {
			signal(SIGTERM, SIG_IGN);
			signal(SIGINT, SIG_IGN);
			signal(SIGHUP, SIG_IGN);
		}
		sleep_ms(50);
	}
	return s;
}

/* The device cgroup's answer for a device node, asked as the kernel asks itself. */
static int denied(const struct script *s, const char *node)
{
	if (s->check_devices == 0 || access(node, R_OK | W_OK) == 0)
		return 0;
	return errno == ENOENT && s->check_devices < 0 ? 0 : errno;
}

static int init_answer(const struct script *s)
{
	if (!s->loaded)
		return DRIVER_NOT_LOADED;
	switch (denied(s, "/dev/nvidiactl")) {
	case 0:
		return s->init_error;
	case ENOENT:
		return DRIVER_NOT_LOADED;
	default:
		return UNKNOWN;
	}
}

int nvmlInitWithFlags(unsigned flags)
{
	struct script s;
	char result[16];
	struct timespec t;
	int rc;

	(void)flags;
	if (enter(&s, "init", -1)->init_delay_ms)
		sleep_ms(s.init_delay_ms);
	rc = init_answer(read_script(&s));
	clock_gettime(CLOCK_MONOTONIC, &t);
	shuffle_by_chance = (int)(t.tv_nsec / 1000 % 97);
	if (rc == OK)
		users++;
	snprintf(result, sizeof result, "%d", rc);
	record("init", result);
	return rc;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
	if (!users)
		return UNINITIALIZED;
	users--;
	record("shutdown", "0");
	return OK;
}

static int copy(char *out, unsigned size, const char *from)
{
	if (!out)
		return INVALID_ARGUMENT;
	if (strlen(from) + 1 > size)
		return INSUFFICIENT_SIZE;
	strcpy(out, from);
	return OK;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
	struct script s;

	return users ? copy(out, size, read_script(&s)->driver) : UNINITIALIZED;
}

/* The real one answers without nvmlInit, too. */
int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
	struct script s;

	return copy(out, size, read_script(&s)->nvml);
}

int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
	struct script s;

	*out = read_script(&s)->cuda;
	return OK;
}

int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

int nvmlDeviceGetCount_v2(unsigned *count)
{
	struct script s;

	if (!users)
		return UNINITIALIZED;
	enter(&s, "count", -1);
	*count = (unsigned)s.n;
	return s.count_error;
}

int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

/* A handle is the GPU's number in the script, so it stays good while the script changes. */
static void *handle_of(const struct gpu *g) { return (void *)(uintptr_t)(0x1000 + 16 * g->id); }

static int open_gpu(const struct gpu *g, void **handle)
{
	struct script s;
	char node[48];

	enter(&s, "handle", g->id);
	if (s.handle_delay_ms[g->id])
		sleep_ms(s.handle_delay_ms[g->id]);
	if (s.handle_error[g->id])
		return s.handle_error[g->id];
	snprintf(node, sizeof node, "/dev/nvidia%d", g->minor);
	if (denied(&s, node))
		return NO_PERMISSION;
	*handle = handle_of(g);
	return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
	struct script s;

	if (!users)
		return UNINITIALIZED;
	read_script(&s);
	if (index >= (unsigned)s.n)
		return INVALID_ARGUMENT;
	return open_gpu(&s.gpus[(index + (unsigned)s.shuffle) % (unsigned)s.n], handle);
}

int nvmlDeviceGetHandleByIndex(unsigned index, void **handle)
{
	return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
	struct script s;

	if (!users)
		return UNINITIALIZED;
	read_script(&s);
	for (int i = 0; i < s.n; i++)
		if (!strcmp(s.gpus[i].uuid, uuid))
			return open_gpu(&s.gpus[i], handle);
	return NOT_FOUND;
}

/* Bus ids come with 4 or 8 digits of domain, in either case. */
static const char *short_bus(const char *bus) { return strlen(bus) > 12 ? bus + strlen(bus) - 12 : bus; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle)
{
	struct script s;

	if (!users)
		return UNINITIALIZED;
	read_script(&s);
	for (int i = 0; i < s.n; i++)
		if (!strcasecmp(short_bus(s.gpus[i].bus), short_bus(bus)))
			return open_gpu(&s.gpus[i], handle);
	return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId(const char *bus, void **handle)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus, handle);
}

/* The GPU behind a handle as the script has it now; an error set on it answers for every question. */
static int look(void *handle, struct script *s, struct gpu **g)
{
	if (!users)
		return UNINITIALIZED;
	read_script(s);
	for (int i = 0; i < s->n; i++)
		if (handle_of(&s->gpus[i]) == handle) {
			*g = &s->gpus[i];
			return s->handle_error[s->gpus[i].id];
		}
	return INVALID_ARGUMENT;
}

#define ASK(handle)                          \
	struct script s;                     \
	struct gpu *g = NULL;                \
	int rc = look((handle), &s, &g);     \
	if (rc != OK)                        \
		return rc

/* The same for a question that not every GPU knows. */
#define ASK_STATE(handle, question)                          \
	ASK(handle);                                         \
	const struct state *t = &s.states[g->id];            \
	if (t->refuse[question])                             \
		return t->refuse[question]

/* MIG devices have handles of their own, above those of the GPUs. */
static void *handle_of_mig(int number) { return (void *)(uintptr_t)(0x100000 + 16 * number); }

static const struct mig_device *mig_behind(void *handle, struct script *s)
{
	read_script(s);
	for (int i = 0; i < s->n_migs; i++)
		if (handle_of_mig(i) == handle)
			return &s->migs[i];
	return NULL;
}

int nvmlDeviceGetUUID(void *h, char *out, unsigned size)
{
	struct script whole;
	const struct mig_device *m = mig_behind(h, &whole);

	if (m)
		return copy(out, size, m->uuid);
	ASK(h);
	return copy(out, size, g->uuid);
}

int nvmlDeviceGetName(void *h, char *out, unsigned size)
{
	struct script whole;
	const struct mig_device *m = mig_behind(h, &whole);
	char name[160];

	if (m) {
		snprintf(name, sizeof name, "NVIDIA H100 80GB HBM3 MIG %s", m->profile);
		return copy(out, size, name);
	}
	ASK(h);
	return copy(out, size, g->name);
}

int nvmlDeviceGetGpuInstanceId(void *h, unsigned *out)
{
	struct script s;
	const struct mig_device *m = mig_behind(h, &s);

	if (!m)
		return INVALID_ARGUMENT;
	*out = (unsigned)m->gi;
	return OK;
}

int nvmlDeviceGetComputeInstanceId(void *h, unsigned *out)
{
	struct script s;
	const struct mig_device *m = mig_behind(h, &s);

	if (!m)
		return INVALID_ARGUMENT;
	*out = (unsigned)m->ci;
	return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *out) { ASK_STATE(h, Q_MIGS); *out = 7; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **out)
{
	unsigned seen = 0;
	ASK_STATE(h, Q_MIGS);

	for (int i = 0; t->mig && i < s.n_migs; i++)
		if (s.migs[i].gpu == g->id && seen++ == index) {
			*out = handle_of_mig(i);
			return OK;
		}
	return NOT_FOUND;
}

int nvmlDeviceGetSerial(void *h, char *out, unsigned size)
{
	ASK(h);
	return *g->serial ? copy(out, size, g->serial) : NOT_SUPPORTED;
}

int nvmlDeviceGetMinorNumber(void *h, unsigned *out) { ASK(h); *out = (unsigned)g->minor; return OK; }
int nvmlDeviceGetPersistenceMode(void *h, unsigned *out) { ASK_STATE(h, Q_PERSISTENCE); *out = !s.persistence_off; return OK; }

int nvmlDeviceGetIndex(void *h, unsigned *out)
{
	ASK(h);
	*out = (unsigned)((g - s.gpus + s.n - s.shuffle % s.n) % s.n);
	return OK;
}

int nvmlDeviceGetMigMode(void *h, unsigned *current, unsigned *pending)
{
	ASK_STATE(h, Q_MIG);
	*current = (unsigned)t->mig;
	*pending = (unsigned)t->mig_pending;
	return OK;
}

int nvmlDeviceGetPciInfo_v3(void *h, struct pci_info *out)
{
	unsigned domain = 0, bus = 0, device = 0;
	ASK(h);

	memset(out, 0, sizeof *out);
	sscanf(g->bus, "%x:%x:%x", &domain, &bus, &device);
	out->domain = domain;
	out->bus = bus;
	out->device = device;
	out->pci_device_id = 0x233010de;
	snprintf(out->bus_legacy, sizeof out->bus_legacy, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, device & 0xff);
	snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", domain, bus & 0xff, device & 0xff);
	return OK;
}

int nvmlDeviceGetPciInfo_v2(void *h, struct pci_info *out) { return nvmlDeviceGetPciInfo_v3(h, out); }
int nvmlDeviceGetPciInfo(void *h, struct pci_info *out) { return nvmlDeviceGetPciInfo_v3(h, out); }

int nvmlDeviceGetMemoryInfo(void *h, struct memory *out)
{
	ASK(h);
	*out = (struct memory){ 85520809984ULL, 84974174208ULL, 546635776ULL };
	return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory_v2 *out)
{
	ASK(h);
	*out = (struct memory_v2){ out->version, 85520809984ULL, 546635776ULL, 84974174208ULL, 0 };
	return OK;
}

int nvmlDeviceGetEccMode(void *h, unsigned *current, unsigned *pending)
{
	ASK_STATE(h, Q_ECC);
	*current = (unsigned)t->ecc;
	*pending = (unsigned)t->ecc_pending;
	return OK;
}

int nvmlDeviceGetRemappedRows(void *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
	ASK_STATE(h, Q_REMAP);
	*corrected = *uncorrected = 0;
	*pending = (unsigned)t->remap_pending;
	*failed = (unsigned)t->remap_failed;
	return OK;
}

int nvmlDeviceGetVirtualizationMode(void *h, unsigned long long *out)
{
	ASK_STATE(h, Q_VIRTUALIZATION);
	*out = (unsigned long long)t->virtualization;
	return OK;
}

/* Field 230 is NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; a field that is not known is refused by itself. */
int nvmlDeviceGetFieldValues(void *h, int n, struct field *out)
{
	ASK(h);
	for (int i = 0; i < n; i++) {
		const struct state *t = &s.states[g->id];

		out[i].rc = out[i].id == 230 ? t->refuse[Q_RECOVERY] : NOT_SUPPORTED;
		out[i].value_type = 1;
		out[i].value = (unsigned long long)t->recovery;
	}
	return OK;
}

int nvmlDeviceGetGpuFabricInfo(void *h, struct fabric *out)
{
	ASK_STATE(h, Q_FABRIC);
	memset(out, 0, sizeof *out);
	out->state = (unsigned char)t->fabric;
	out->status = (unsigned)t->fabric_status;
	return OK;
}

int nvmlDeviceGetGpuFabricInfoV(void *h, struct fabric_v *out)
{
	unsigned version = out->version;
	ASK_STATE(h, Q_FABRIC);

	memset(out, 0, sizeof *out);
	out->version = version;
	out->state = (unsigned char)t->fabric;
	out->status = (unsigned)t->fabric_status;
	return OK;
}

int nvmlEventSetCreate(struct event_set **set)
{
	if (!users)
		return UNINITIALIZED;
	*set = calloc(1, sizeof **set);
	(*set)->born = now();
	return OK;
}

int nvmlEventSetFree(struct event_set *set) { free(set); return OK; }

int nvmlDeviceRegisterEvents(void *h, unsigned long long types, struct event_set *set)
{
	ASK(h);
	(void)types;
	(void)set;
	return OK;
}

/* The xid line number "wanted" of those that came due after this set was made. */
static int find_xid(const struct event_set *set, struct event *out)
{
	char line[512], at[32];
	FILE *f = fopen(path(), "re");
	int seen = 0, found = 0;

	while (f && !found && fgets(line, sizeof line, f)) {
		struct gpu g = { .id = number(line, "gpu", 0) };
		double due = text(line, "at", at, sizeof at) ? atof(at) : 0;

		if (strncmp(line, "xid ", 4) || due < set->born || due > now() || seen++ < set->delivered)
			continue;
		*out = (struct event){ handle_of(&g), 8, strtoull(line + 4, NULL, 10), ~0U, ~0U };
		found = 1;
	}
	if (f)
		fclose(f);
	return found;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event *out, unsigned timeout_ms)
{
	double end = now() + timeout_ms / 1000.0;

	if (!users)
		return UNINITIALIZED;
	do {
		if (find_xid(set, out)) {
			set->delivered++;
			return OK;
		}
		sleep_ms(100);
	} while (now() < end);
	return TIMEOUT;
}

int nvmlEventSetWait(struct event_set *set, struct event *out, unsigned timeout_ms)
{
	return nvmlEventSetWait_v2(set, out, timeout_ms);
}

const char *nvmlErrorString(int code)
{
	static const struct { int code; const char *words; } errors[] = {
		{ 0, "Success" }, { 1, "Uninitialized" }, { 2, "Invalid Argument" }, { 3, "Not Supported" },
		{ 4, "Insufficient Permissions" }, { 5, "Already Initialized" }, { 6, "Not Found" },
		{ 7, "Insufficient Size" }, { 8, "Insufficient External Power" }, { 9, "Driver Not Loaded" },
		{ 10, "Timeout" }, { 11, "Interrupt Request Issue" }, { 12, "NVML Shared Library Not Found" },
		{ 13, "Function Not Found" }, { 14, "Corrupted infoROM" }, { 15, "GPU is lost" },
		{ 16, "GPU requires restart" }, { 17, "The operating system has blocked the request." },
		{ 18, "RM has detected an NVML/RM version mismatch." }, { 19, "In use by another client" },
		{ 20, "Insufficient memory" }, { 999, "Unknown Error" },
	};

	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code)
			return errors[i].words;
	return "Unknown Error";
}
