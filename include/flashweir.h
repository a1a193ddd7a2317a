/* What files of a mount of `weir mount` can do beyond POSIX: order without durability, atomic files, and the exchange of ranges.
 *
 * All functions return 0, or -1 with errno. ENOTTY: another file system. EIO: after a power cut.
 *
 * What the kernel still keeps of a file is handed on first, which is waited for; this is no flush of the device. It
 * needs Linux 6.16 or later, or a mount without --write-back, or a file that was opened with O_DIRECT.
 */
#ifndef FLASHWEIR_H
#define FLASHWEIR_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before any header: sync_file_range() is of Linux"
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

/* Files of one set. */
#define FLASHWEIR_SET_MAX 62

struct flashweir_set {
	uint32_t count;
	/* 0: as fsync; 1: as fdatasync. */
	uint32_t data_only;
	uint64_t ino[FLASHWEIR_SET_MAX];
};

/* Linux's struct xfs_exchange_range. */
struct flashweir_exchange {
	int32_t first_fd;
	uint32_t pad;
	uint64_t first_offset;
	uint64_t second_offset;
	uint64_t length;
	uint64_t flags;
};

/* Flags: up to the ends of both files, which have to be as far away in both; and make it durable. */
#define FLASHWEIR_EXCHANGE_TO_EOF 1
#define FLASHWEIR_EXCHANGE_DSYNC 2

/* Linux's XFS_IOC_EXCHANGE_RANGE. */
#define FLASHWEIR_IOC_EXCHANGE _IOW('X', 129, struct flashweir_exchange)
#define FLASHWEIR_IOC_FBARRIER _IO('W', 1)
#define FLASHWEIR_IOC_FDATABARRIER _IO('W', 2)
#define FLASHWEIR_IOC_ATOMIC _IO('W', 3)
#define FLASHWEIR_IOC_ABORT _IO('W', 4)
#define FLASHWEIR_IOC_SYNCV _IOW('W', 5, struct flashweir_set)

static inline int flashweir_hand_on(int fd)
{
	return sync_file_range(fd, 0, 0,
			       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

static inline int flashweir_order(int fd, unsigned long request)
{
	return flashweir_hand_on(fd) != 0 ? -1 : ioctl(fd, request);
}

/* Order, on a mount with --commit dual (EOPNOTSUPP elsewhere): what was written to the file before, data and
 * attributes, becomes durable before anything that is written later. Nothing is durable when they return. */
static inline int fbarrier(int fd)
{
	return flashweir_order(fd, FLASHWEIR_IOC_FBARRIER);
}

/* The same of the file's data. */
static inline int fdatabarrier(int fd)
{
	return flashweir_order(fd, FLASHWEIR_IOC_FDATABARRIER);
}

/* Atomic files, on ext4 with --journal-mode journal and where the device has SHARE (EOPNOTSUPP elsewhere, and under
 * `weir check`).
 *
 * fatomic(fd): what is written to the file, by whatever process, is withheld from here on, until fd is closed and
 * nothing is withheld any more: a power cut shows all of what was written since the last sync of the file, or nothing
 * of it. Only fsync, fdatasync, fbarrier, fdatabarrier, msync and fsyncv of this file release it; sync() and syncfs()
 * do not. What was not released is lost when the mount ends. EBADF: fd is not open for writing. */
static inline int fatomic(int fd)
{
	return flashweir_order(fd, FLASHWEIR_IOC_ATOMIC);
}

/* Forgets what was written to the file since the last sync of it. EINVAL: fd is not atomic.
 * The kernel keeps the length of a file, and appends by what it keeps: fstat has it ask for the length of now. */
static inline int fabort(int fd)
{
	struct stat stat;
	int aborted = flashweir_order(fd, FLASHWEIR_IOC_ABORT);
	int error = errno;

	fstat(fd, &stat);
	errno = error;
	return aborted;
}

/* Releases what is withheld of all these files, and makes it durable: after a power cut all of it is there, or nothing.
 * EFBIG: the set is larger than a quarter of the journal, or than one SHARE. ENOSPC: there is no room for it. In both cases nothing has
 * changed, and all of it is still withheld. EINVAL: a file is not atomic, or there are more than FLASHWEIR_SET_MAX.
 * EXDEV: they are on different mounts. */
static inline int fsyncv(const int *fds, unsigned int count)
{
	struct flashweir_set set;
	struct stat stat;
	dev_t device = 0;
	unsigned int at;

	if (count == 0)
		return 0;
	if (count > FLASHWEIR_SET_MAX) {
		errno = EINVAL;
		return -1;
	}
	memset(&set, 0, sizeof set);
	for (at = 0; at < count; at++) {
		if (flashweir_hand_on(fds[at]) != 0 || fstat(fds[at], &stat) != 0)
			return -1;
		if (at > 0 && stat.st_dev != device) {
			errno = EXDEV;
			return -1;
		}
		device = stat.st_dev;
		set.ino[set.count++] = stat.st_ino;
	}
	return ioctl(fds[0], FLASHWEIR_IOC_SYNCV, &set);
}

/* Exchanges ranges of two files, or of one, wherever there are atomic files (ENOTTY elsewhere): after a power cut all of it has happened, or
 * nothing. Without FLASHWEIR_EXCHANGE_DSYNC it is durable when both are synced. EINVAL: an offset is not a multiple of 4096, the length
 * is not, and the ranges do not end where their files do, they overlap, or go beyond a file. EBADF: a file is not open for reading and
 * writing. EBUSY: a file withholds what was written to it. EFBIG: more than half of what one SHARE, or a transaction of the journal, takes.
 * EXDEV: they are on different mounts. EOPNOTSUPP: another flag, or a process of another PID namespace. */
static inline int fexchange(int first_fd, uint64_t first_offset, int second_fd, uint64_t second_offset, uint64_t length,
			    uint64_t flags)
{
	struct flashweir_exchange exchange = {first_fd, 0, first_offset, second_offset, length, flags};

	if (flashweir_hand_on(first_fd) != 0 || flashweir_hand_on(second_fd) != 0)
		return -1;
	return ioctl(second_fd, FLASHWEIR_IOC_EXCHANGE, &exchange);
}

#endif
