// Measures directory operations: `metadata DIR COUNT` prints one line of JSON, operations per second of each kind.
//
// Files are created, looked up four times, renamed and removed in 16 directories.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DIRECTORIES 16
#define LOOKS 4

static const char *dir;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void checked(int result, const char *what, const char *path) {
    if (result >= 0)
        return;
    fprintf(stderr, "%s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

static const char *name(char *into, size_t room, const char *prefix, int at) {
    snprintf(into, room, "%s/d%d/%s%06d", dir, at % DIRECTORIES, prefix, at);
    return into;
}

static void create(const char *path, const char *unused) {
    (void)unused;
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    checked(file, "create", path);
    checked(close(file), "close", path);
}

static void look(const char *path, const char *unused) {
    (void)unused;
    struct stat found;
    checked(stat(path, &found), "stat", path);
}

static void move(const char *path, const char *to) { checked(rename(path, to), "rename", path); }

static void take_away(const char *path, const char *unused) {
    (void)unused;
    checked(unlink(path), "unlink", path);
}

static double rate(void (*operation)(const char *, const char *), const char *prefix, int count, int times) {
    char path[4096], to[4096];
    double begun = now();
    for (int turn = 0; turn < times; turn++)
        for (int at = 0; at < count; at++)
            operation(name(path, sizeof path, prefix, at), name(to, sizeof to, "renamed", at));
    return count * times / (now() - begun);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "expected: %s DIR COUNT\n", argv[0]);
        return 2;
    }
    dir = argv[1];
    int count = atoi(argv[2]);
    char path[4096];
    for (int at = 0; at < DIRECTORIES; at++) {
        snprintf(path, sizeof path, "%s/d%d", dir, at);
        checked(mkdir(path, 0755), "mkdir", path);
    }
    double created = rate(create, "file", count, 1);
    double looked = rate(look, "file", count, LOOKS);
    double moved = rate(move, "file", count, 1);
    double removed = rate(take_away, "renamed", count, 1);
    for (int at = 0; at < DIRECTORIES; at++) {
        snprintf(path, sizeof path, "%s/d%d", dir, at);
        checked(rmdir(path), "rmdir", path);
    }
    printf("{\"create\": %.0f, \"stat\": %.0f, \"rename\": %.0f, \"unlink\": %.0f}\n", created, looked, moved, removed);
    return 0;
}
