/* Signals to processes that wait for a file system.
 *
 * `interrupts DIR storm`: 10,000 calls of each kind under a timer that fires a hundred times a second, and as many under one that fires
 * a thousand times; a call that fails with EINTR is a fault, as on any local file system.
 *
 * `interrupts DIR slow`: on a device that takes seconds. The directory has three files of one byte. A process waits for a sync of
 * `long`; one that syncs `alarm` gets a signal that it handles, and its sync continues; one that syncs `killed` gets such a signal,
 * is killed some time later, and has to end while the first still waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t signals;

static void fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void handle(int signal) {
    (void)signal;
    signals++;
}

static void with_timer(long first_us, long then_us, int flags) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = flags};
    struct itimerval timer = {.it_value = {.tv_usec = first_us}, .it_interval = {.tv_usec = then_us}};
    if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &timer, NULL))
        fail("a timer");
}

static long interrupted, calls;

static void check(const char *what, int result) {
    calls++;
    if (result >= 0)
        return;
    if (errno != EINTR)
        fail(what);
    printf("%s says EINTR\n", what);
    interrupted++;
}

static void storm(long period_us, int flags) {
    struct stat stat_of;
    char byte = 'x', read_back;
    with_timer(period_us, period_us, flags);
    for (int round = 0; round < 1000; round++) {
        char name[32], other[32];
        snprintf(name, sizeof name, "f%d", round);
        snprintf(other, sizeof other, "g%d", round);
        int file = open(name, O_RDWR | O_CREAT, 0600);
        check("open", file);
        if (file < 0)
            continue;
        check("write", write(file, &byte, 1));
        check("read", pread(file, &read_back, 1, 0));
        check("truncate", ftruncate(file, 5000));
        check("fsync", fsync(file));
        check("close", close(file));
        check("stat", stat(name, &stat_of));
        check("rename", rename(name, other));
        check("mkdir", mkdir(name, 0700));
        check("rmdir", rmdir(name));
        check("symlink", symlink(other, name));
        check("unlink", unlink(name));
        check("unlink", unlink(other));
    }
    with_timer(0, 0, flags);
}

/* Writes a file and does not sync it; returns it. */
static int written(const char *name, size_t kib) {
    static char kibibyte[1024];
    int file = open(name, O_WRONLY);
    if (file < 0)
        fail(name);
    memset(kibibyte, name[0], sizeof kibibyte);
    for (size_t i = 0; i < kib; i++)
        if (write(file, kibibyte, sizeof kibibyte) != (ssize_t)sizeof kibibyte)
            fail(name);
    return file;
}

/* Starts a process that syncs, and exits with the error. */
static pid_t syncs(int file, int with_alarm) {
    pid_t pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid > 0)
        return pid;
    if (with_alarm)
        with_timer(300000, 0, 0);
    _exit(fsync(file) ? errno : signals ? 0 : 200 * with_alarm);
}

static void slow(void) {
    int status;
    int of_long = written("long", 16 << 10), of_alarm = written("alarm", 64), of_killed = written("killed", 64);
    pid_t waits = syncs(of_long, 0);
    usleep(100000);
    pid_t alarmed = syncs(of_alarm, 1), killed = syncs(of_killed, 1);
    usleep(1000000);
    if (waitpid(killed, &status, WNOHANG) != 0) {
        printf("the sync that was to be killed ended before, with %x\n", status);
        exit(1);
    }
    if (kill(killed, SIGKILL) || waitpid(killed, &status, 0) != killed)
        fail("the one to be killed");
    if (!WIFSIGNALED(status)) {
        printf("the sync that was to be killed ended with %d before\n", WEXITSTATUS(status));
        exit(1);
    }
    if (waitpid(waits, &status, WNOHANG) != 0) {
        printf("the first sync was through before the killed one was gone\n");
        exit(1);
    }
    if (waitpid(waits, &status, 0) != waits || !WIFEXITED(status) || WEXITSTATUS(status)) {
        printf("the first sync ended with %x\n", status);
        exit(1);
    }
    if (waitpid(alarmed, &status, 0) != alarmed || !WIFEXITED(status) || WEXITSTATUS(status)) {
        printf("the sync with an alarm ended with %x, expected 0 after a signal\n", status);
        exit(1);
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 3 || chdir(argv[1]))
        fail("expected a directory and storm or slow");
    if (!strcmp(argv[2], "slow")) {
        slow();
        return 0;
    }
    storm(10000, 0);
    storm(1000, 0);
    storm(1000, SA_RESTART);
    printf("%ld calls, %ld said EINTR\n", calls, interrupted);
    return interrupted != 0;
}
