/* malloc that fails where an armed fault "alloc" says so, to be given to libraries:
 *
 *     json_set_alloc_funcs(alloc_fault_malloc, free);
 */
#ifndef TESTS_SUPPORT_ALLOC_FAULT_H
#define TESTS_SUPPORT_ALLOC_FAULT_H

#include <stdlib.h>

void *alloc_fault_malloc(size_t n);

#endif
