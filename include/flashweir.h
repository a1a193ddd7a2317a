/* Order without durability, on files of a mount of `weir mount ... --commit dual`.
 *
 * fbarrier(fd):     what was written to the file before, data and attributes, becomes durable before anything that is
 *                   written later. fdatabarrier(fd): the same of its data. Nothing is durable when they return.
 *
 * They return 0, or -1 with errno: EOPNOTSUPP where the file system is not mounted with --commit dual, ENOTTY on other
 * file systems, EIO after a power cut.
 *
 * What the kernel still keeps of the file is handed on first, which is waited for; this is no flush of the device. It
 * needs Linux 6.16 or later, or a mount without --write-back, or a file that was opened with O_DIRECT.
 */
#ifndef FLASHWEIR_H
#define FLASHWEIR_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before any header: sync_file_range() is of Linux"
#endif

#include <fcntl.h>
#include <sys/ioctl.h>

#define FLASHWEIR_IOC_FBARRIER _IO('W', 1)
#define FLASHWEIR_IOC_FDATABARRIER _IO('W', 2)

static inline int flashweir_order(int fd, unsigned long request)
{
	unsigned int hand_on = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;

	if (sync_file_range(fd, 0, 0, hand_on) != 0)
		return -1;
	return ioctl(fd, request);
}

static inline int fbarrier(int fd)
{
	return flashweir_order(fd, FLASHWEIR_IOC_FBARRIER);
}

static inline int fdatabarrier(int fd)
{
	return flashweir_order(fd, FLASHWEIR_IOC_FDATABARRIER);
}

#endif
