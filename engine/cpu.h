/* Which class the CPU backend's results would have on this machine, without a model. */
#ifndef ENGINE_CPU_H
#define ENGINE_CPU_H

#include "base/err.h"

/* Class and revision: "cpu-avx512bf16/3", ... "cpu-portable/2"; a static string. ERR_NOMEM. */
NODISCARD enum err cpu_numerics(const char **out, struct error *e);

#endif
