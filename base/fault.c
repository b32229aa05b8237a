#include "base/fault.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/auto.h"

struct fault {
    enum fault_action action;
    char name[FAULT_NAME_BYTES];
    uint64_t n;
    _Atomic uint64_t hits;
};

static struct fault faults[FAULT_MAX_ARMED];
static _Atomic bool fired;
static _Atomic int use_errno;
_Atomic uint32_t fault_armed_;

void fault_arm(enum fault_action action, const char *name, uint64_t n)
{
    uint32_t i = atomic_load(&fault_armed_);
    assert(i < FAULT_MAX_ARMED && (action == FAULT_COUNT || n > 0));
    if (i == 0)
        atomic_store(&fired, false);
    faults[i].action = action;
    faults[i].n = n;
    atomic_store(&faults[i].hits, 0);
    snprintf(faults[i].name, sizeof faults[i].name, "%s", name ? name : "*");
    atomic_store(&fault_armed_, i + 1);
}

void fault_use_errno(int sys)
{
    atomic_store(&use_errno, sys);
}

int fault_errno(int sys)
{
    int other = atomic_load(&use_errno);
    return other ? other : sys;
}

bool fault_disarm(void)
{
    atomic_store(&use_errno, 0);
    atomic_store(&fault_armed_, 0);
    return atomic_exchange(&fired, false);
}

uint64_t fault_hits(void)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < atomic_load(&fault_armed_); i++)
        sum += atomic_load(&faults[i].hits);
    return sum;
}

bool fault_hit_(const char *name)
{
    bool fail = false;
    uint32_t n_armed = atomic_load(&fault_armed_);
    for (uint32_t i = 0; i < n_armed; i++) {
        struct fault *f = &faults[i];
        if (f->name[0] != '*' && strcmp(f->name, name) != 0)
            continue;
        uint64_t hit = atomic_fetch_add(&f->hits, 1) + 1;
        if (f->action == FAULT_CRASH && hit == f->n)
            kill(getpid(), SIGKILL);
        if ((f->action == FAULT_FAIL && hit == f->n) ||
            (f->action == FAULT_FAIL_FROM && hit >= f->n))
            fail = true;
    }
    if (fail)
        atomic_store(&fired, true);
    return fail;
}

/* One entry ACTION:NAME:N of AGENTD_FAULT, cut up in place. */
static enum err arm_entry(char *entry, struct error *e)
{
    static const struct {
        const char *word;
        enum fault_action action;
    } actions[] = {
        {"crash", FAULT_CRASH}, {"fail", FAULT_FAIL}, {"fail-from", FAULT_FAIL_FROM}};
    const char *whole = entry;
    char copy[96];
    snprintf(copy, sizeof copy, "%s", whole);
    char *name = strchr(entry, ':');
    char *number = name ? strrchr(name + 1, ':') : NULL;
    if (!number || number == name + 1 || number - name > FAULT_NAME_BYTES)
        return err_set(e, ERR_INVAL, "AGENTD_FAULT \"%s\": want ACTION:NAME:N", copy);
    *name++ = '\0';
    *number++ = '\0';
    char *end;
    unsigned long long n = strtoull(number, &end, 10);
    if (*number < '1' || *number > '9' || *end)
        return err_set(e, ERR_INVAL, "AGENTD_FAULT \"%s\": want a count from 1", copy);
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        if (strcmp(entry, actions[i].word) == 0) {
            fault_arm(actions[i].action, name, n);
            return OK;
        }
    }
    return err_set(e, ERR_INVAL, "AGENTD_FAULT \"%s\": want crash, fail or fail-from", copy);
}

enum err fault_arm_env(struct error *e)
{
    const char *value = getenv("AGENTD_FAULT");
    if (!value || !*value)
        return OK;
    AUTO_FREE char *copy = strdup(value);
    if (!copy)
        return err_set(e, ERR_NOMEM, "AGENTD_FAULT: no memory");
    char *rest = copy, *entry;
    while ((entry = strsep(&rest, ","))) {
        if (atomic_load(&fault_armed_) == FAULT_MAX_ARMED)
            return err_set(e, ERR_INVAL, "AGENTD_FAULT: more than %d entries", FAULT_MAX_ARMED);
        enum err rc = arm_entry(entry, e);
        if (rc)
            return rc;
    }
    return OK;
}
