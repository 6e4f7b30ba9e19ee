/* LD_PRELOAD: the time of day is off by the seconds that the file CLOCK_JUMPS holds, as a double, also where a thread waits until
 * a time of day. Monotonic clocks are not touched. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static volatile double *offset;

__attribute__((constructor)) static void look(void) {
    const char *path = getenv("CLOCK_JUMPS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offset = found;
    close(file);
}

static void shift(struct timespec *time, double seconds) {
    double whole = floor(seconds);
    time->tv_sec += (time_t)whole;
    time->tv_nsec += (long)((seconds - whole) * 1e9);
    if (time->tv_nsec >= 1000000000L) time->tv_sec++, time->tv_nsec -= 1000000000L;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, time);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) shift(time, *offset);
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *time, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, time) ? base : 0;
}

/* What the kernel's own clock shows then. No monotonic clock shows the year 2001: a time of before it is one of those. */
static struct timespec real_time(const struct timespec *due) {
    struct timespec shifted = *due;
    if (offset && due->tv_sec > 1000000000) shift(&shifted, -*offset);
    return shifted;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict due) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = (__typeof__(real))dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec shifted = real_time(due);
    return real(cond, mutex, &shifted);
}

int cnd_timedwait(cnd_t *restrict cond, mtx_t *restrict mutex, const struct timespec *restrict due) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec shifted = real_time(due);
    return real(cond, mutex, &shifted);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict due) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec shifted = real_time(due);
    return real(semaphore, &shifted);
}
