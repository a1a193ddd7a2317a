/* Processes that wait for syncs of a slow device, and signals. In the directory that is given are three files of one byte:
 * `long` is synced by somebody who waits; who waits for `alarm` gets a signal that he handles; who waits for `killed` is killed.
 * The two have to be out of their syncs while the first still waits. Then `alarm` is synced anew. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void handle(int signal) { (void)signal; }

/* A file that is written to, and not synced. */
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

/* A process that syncs; it ends with the error. */
static pid_t syncs(int file, int with_alarm) {
    pid_t pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid > 0)
        return pid;
    if (with_alarm) {
        struct sigaction action = {.sa_handler = handle};
        struct itimerval after = {.it_value = {.tv_usec = 300000}};
        if (sigaction(SIGALRM, &action, NULL) || setitimer(ITIMER_REAL, &after, NULL))
            fail("an alarm");
    }
    _exit(fsync(file) ? errno : 0);
}

int main(int argc, char **argv) {
    int status;
    if (argc != 2 || chdir(argv[1]))
        fail("expected a directory");
    int of_long = written("long", 16 << 10), of_alarm = written("alarm", 64), of_killed = written("killed", 64);
    pid_t waits = syncs(of_long, 0);
    usleep(100000);
    pid_t alarmed = syncs(of_alarm, 1), killed = syncs(of_killed, 0);
    if (waitpid(alarmed, &status, 0) != alarmed || !WIFEXITED(status))
        fail("the one with an alarm");
    if (WEXITSTATUS(status) != EINTR) {
        printf("the sync with an alarm ended with %d, expected %d (EINTR)\n", WEXITSTATUS(status), EINTR);
        return 1;
    }
    if (kill(killed, SIGKILL) || waitpid(killed, &status, 0) != killed)
        fail("the one to be killed");
    if (!WIFSIGNALED(status)) {
        printf("the sync that was to be killed ended with %d before\n", WEXITSTATUS(status));
        return 1;
    }
    if (waitpid(waits, &status, WNOHANG) != 0) {
        printf("the first sync was through before the two were out of theirs\n");
        return 1;
    }
    if (waitpid(waits, &status, 0) != waits || !WIFEXITED(status) || WEXITSTATUS(status)) {
        printf("the first sync ended with %x\n", status);
        return 1;
    }
    if (fsync(of_alarm))
        fail("the second sync of what had an alarm");
    return 0;
}
