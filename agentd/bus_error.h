/* Weights are mapped: where a shard is cut short under a running daemon, or its disk fails, the
 * access to what is missing is a SIGBUS, in the middle of a product, and nothing to go on from.
 * The daemon ends by it; this has the log say which file it was. What was acknowledged is on
 * disk, as after any other death. */
#ifndef AGENTD_BUS_ERROR_H
#define AGENTD_BUS_ERROR_H

/* For the process, before threads are started. */
void bus_error_report(void);

/* The file of /proc/self/maps (open as fd) that is mapped at `address`: its path, cut to
 * cap - 1 bytes; "" when there is none. Calls nothing but read(2). */
void bus_error_find(int fd, unsigned long address, char *out, unsigned long cap);

#endif
