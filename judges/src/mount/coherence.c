/* Visibility of programs' own and each other's changes on a file system.
 *
 * `coherence DIR stale`: asynchronous O_DIRECT writes and buffered reads of the same block; a read that begins after the end of a
 * write sees it, through the same descriptor and through a new one.
 *
 * `coherence DIR blocks`: the blocks of a file are counted as soon as it is synced.
 *
 * `coherence DIR set-id`: a file of root with mode 6777, which another user may write, loses its set-ID bits at once by each kind of
 * change, for stat and for execve.
 *
 * `coherence DIR limits`: writes beyond the maximum file size and to a full disk fail with the right errors.
 *
 * `coherence DIR room`: what finds room in part only, written or in memory that is mapped, is reported or there.
 *
 * `coherence DIR attributes`: extended attributes fit into buffers of exactly their length. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { BLOCK = 4096, ROUNDS = 400 };

static void fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static char *block_of(unsigned char byte) {
    static char *block;
    if (!block && posix_memalign((void **)&block, BLOCK, BLOCK))
        fail("memory");
    memset(block, byte, BLOCK);
    return block;
}

static void expect(int file, off_t at, unsigned char byte, const char *who, int round) {
    static char found[BLOCK];
    if (pread(file, found, BLOCK, at) != BLOCK)
        fail(who);
    for (int i = 0; i < BLOCK; i++)
        if ((unsigned char)found[i] != byte) {
            printf("%s in round %d: byte %d is %d, expected %d\n", who, round, i, (unsigned char)found[i], byte);
            exit(1);
        }
}

static void stale(void) {
    enum { BLOCKS = 16 };
    int direct = open("stale", O_RDWR | O_CREAT | O_DIRECT, 0600), buffered = open("stale", O_RDWR);
    aio_context_t queue = 0;
    if (direct < 0 || buffered < 0 || syscall(SYS_io_setup, 8, &queue))
        fail("stale");
    for (int i = 0; i < BLOCKS; i++)
        if (pwrite(buffered, block_of(0), BLOCK, i * BLOCK) != BLOCK)
            fail("fill");
    pid_t reader = fork();
    if (reader == 0) {
        /* Reads old content into the cache while a write is under way. */
        static char ignored[BLOCKS * BLOCK];
        for (;;)
            if (pread(buffered, ignored, sizeof ignored, 0) < 0)
                _exit(0);
    }
    for (int round = 1; round <= ROUNDS; round++) {
        off_t at = round % BLOCKS * BLOCK;
        unsigned char byte = 1 + round % 250;
        struct iocb write = {.aio_fildes = direct,
                             .aio_lio_opcode = IOCB_CMD_PWRITE,
                             .aio_buf = (unsigned long)block_of(byte),
                             .aio_nbytes = BLOCK,
                             .aio_offset = at};
        struct iocb *writes[] = {&write};
        struct io_event event;
        if (syscall(SYS_io_submit, queue, 1, writes) != 1 || syscall(SYS_io_getevents, queue, 1, 1, &event, NULL) != 1 ||
            event.res != BLOCK)
            fail("an asynchronous write");
        expect(buffered, at, byte, "an open file", round);
        int again = open("stale", O_RDONLY);
        expect(again, at, byte, "a file opened anew", round);
        close(again);
    }
    kill(reader, 9);
    waitpid(reader, NULL, 0);
}

static void blocks(void) {
    struct stat stat_of;
    for (int round = 0; round < 50; round++) {
        char name[32];
        snprintf(name, sizeof name, "blocks-%d", round);
        int file = open(name, O_RDWR | O_CREAT, 0600);
        if (file < 0 || fstat(file, &stat_of))
            fail(name);
        for (int i = 0; i < 16; i++)
            if (write(file, block_of(7), BLOCK) != BLOCK)
                fail("write");
        if (fsync(file) || fstat(file, &stat_of))
            fail("fsync");
        if (stat_of.st_blocks < 16 * BLOCK / 512) {
            printf("after fsync of %d bytes st_blocks is %ld\n", 16 * BLOCK, (long)stat_of.st_blocks);
            exit(1);
        }
        close(file);
    }
}

static void change(int how) {
    int file = open("set-id", how == 1 ? O_WRONLY | O_DIRECT : O_WRONLY);
    if (file < 0)
        fail("set-id");
    int done = -1;
    switch (how) {
    case 0: done = pwrite(file, "#", 1, 0); break;
    case 1: done = pwrite(file, block_of('#'), BLOCK, 1 << 20); break;
    case 2: done = fallocate(file, 0, 0, 100000); break;
    case 3: done = fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 4000000); break;
    case 4: done = fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 20, BLOCK); break;
    case 5: done = fallocate(file, FALLOC_FL_ZERO_RANGE, 1 << 20, BLOCK); break;
    case 6: done = ftruncate(file, 3000000); break;
    }
    if (done < 0)
        fail("a change");
    close(file);
}

/* Effective user of a program in the file. */
static int runs_as(void) {
    pid_t pid = fork();
    int status;
    if (pid == 0) {
        char *none[] = {NULL}, *args[] = {"set-id", "who", NULL};
        execve("./set-id", args, none);
        _exit(99);
    }
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        fail("execve");
    return WEXITSTATUS(status);
}

static void copy_of_self(void) {
    char buffer[65536];
    int from = open("/proc/self/exe", O_RDONLY), to = open("set-id", O_WRONLY | O_CREAT | O_TRUNC, 0775);
    ssize_t count;
    if (from < 0 || to < 0)
        fail("a copy");
    while ((count = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, count) != count)
            fail("a copy");
    close(from);
    if (fchown(to, 0, 0) || fchmod(to, 06777) || fsync(to) || close(to))
        fail("set-ID bits");
}

static void set_id(void) {
    for (int how = 0; how <= 6; how++) {
        struct stat stat_of;
        int status;
        copy_of_self();
        pid_t pid = fork();
        if (pid == 0) {
            if (setgid(65534) || setuid(65534))
                fail("setuid");
            if (stat("set-id", &stat_of) || (stat_of.st_mode & 07777) != 06777 || runs_as() != 0) {
                printf("the file is not set up: %o\n", stat_of.st_mode);
                exit(1);
            }
            change(how);
            if (stat("set-id", &stat_of) || stat_of.st_mode & 06000) {
                printf("after change %d by another user the mode is %o\n", how, stat_of.st_mode);
                exit(1);
            }
            if (how != 0 && runs_as() != 1) {
                printf("after change %d by another user the file still runs as root\n", how);
                exit(1);
            }
            exit(0);
        }
        if (waitpid(pid, &status, 0) != pid || status != 0)
            exit(1);
    }
}

static void limits(void) {
    struct stat stat_of;
    int file = open("limits", O_RDWR | O_CREAT, 0600);
    if (file < 0)
        fail("limits");
    errno = 0;
    if (pwrite(file, "x", 1, 1L << 60) >= 0 || errno != EFBIG || fstat(file, &stat_of) || stat_of.st_size != 0) {
        printf("a write at 1 EiB: %s, then the file has %lld bytes\n", strerror(errno), (long long)stat_of.st_size);
        exit(1);
    }
    long written = 0;
    for (;;) {
        ssize_t done = write(file, block_of('f'), BLOCK);
        if (done < 0 && errno == ENOSPC)
            break;
        if (done < 0)
            fail("a write to a full disk");
        if ((written += done) > 1L << 30) {
            printf("a disk of 512 MiB took %ld bytes\n", written);
            exit(1);
        }
    }
    if (mkdir("full", 0700) && errno != ENOSPC)
        fail("mkdir on a full disk");
    if (fsync(file))
        fail("fsync on a full disk");
    if (rename("limits", "moved"))
        fail("mv on a full disk");
    if (unlink("moved") || close(file))
        fail("rm on a full disk");
}

static void room(void) {
    enum { PART = 128 * BLOCK };
    char *bytes = malloc(PART), *found = malloc(PART);
    int filler = open("filler", O_RDWR | O_CREAT, 0600);
    if (!bytes || !found || filler < 0)
        fail("room");
    memset(bytes, 'r', PART);
    off_t full = 0;
    while (pwrite(filler, bytes, PART, full) == PART && fsync(filler) == 0)
        full += PART;
    for (int is_mapped = 0; is_mapped <= 1; is_mapped++) {
        if (ftruncate(filler, full - (is_mapped + 1) * 75 * BLOCK))
            fail("less of the filler");
        sync();
        sync();
        int file = open("part", O_RDWR | O_CREAT | O_EXCL, 0600), is_synced;
        if (file < 0)
            fail("a file on a disk that is nearly full");
        if (is_mapped) {
            if (ftruncate(file, PART))
                fail("a hole");
            char *memory = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (memory == MAP_FAILED)
                fail("mmap");
            memcpy(memory, bytes, PART);
            is_synced = msync(memory, PART, MS_SYNC) == 0 && fsync(file) == 0;
            munmap(memory, PART);
        } else
            is_synced = pwrite(file, bytes, PART, 0) == PART && fsync(file) == 0;
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        if (is_synced && (pread(file, found, PART, 0) != PART || memcmp(found, bytes, PART))) {
            printf("%s: what was synced is not there\n", is_mapped ? "mmap" : "write");
            exit(1);
        }
        close(file);
        if (unlink("part"))
            fail("rm of a part");
    }
    close(filler);
    if (unlink("filler"))
        fail("rm of the filler");
    sync();
}

static void attributes(void) {
    char value[100], found[100];
    int file = open("attributes", O_RDWR | O_CREAT, 0600);
    memset(value, 'v', sizeof value);
    if (file < 0 || fsetxattr(file, "user.name", value, sizeof value, 0))
        fail("attributes");
    if (fgetxattr(file, "user.name", NULL, 0) != sizeof value ||
        fgetxattr(file, "user.name", found, sizeof found) != sizeof value || memcmp(found, value, sizeof value))
        fail("an attribute of exactly that length");
    errno = 0;
    if (fgetxattr(file, "user.name", found, sizeof found - 1) >= 0 || errno != ERANGE)
        fail("an attribute without room");
    ssize_t names = flistxattr(file, NULL, 0);
    if (names < 10 || names > (ssize_t)sizeof found || flistxattr(file, found, names) != names)
        fail("names of exactly that length");
    errno = 0;
    if (flistxattr(file, found, names - 1) >= 0 || errno != ERANGE)
        fail("names without room");
    close(file);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && !strcmp(argv[1], "who"))
        return geteuid() != 0;
    if (argc != 3 || chdir(argv[1]))
        fail("expected a directory and what to do");
    if (!strcmp(argv[2], "stale"))
        stale();
    else if (!strcmp(argv[2], "blocks"))
        blocks();
    else if (!strcmp(argv[2], "set-id"))
        set_id();
    else if (!strcmp(argv[2], "limits"))
        limits();
    else if (!strcmp(argv[2], "room"))
        room();
    else if (!strcmp(argv[2], "attributes"))
        attributes();
    else
        fail(argv[2]);
    return 0;
}
