#include "agentd/job.h"

void outbox_init(struct outbox *o, struct queue *jobs)
{
    *o = (struct outbox){.queue = jobs};
    o->tail = &o->first;
}

void outbox_submit(struct outbox *o, struct job *j)
{
    j->rc = OK;
    j->error = (struct error){0};
    j->next = NULL;
    *o->tail = j;
    o->tail = &j->next;
    outbox_flush(o);
}

void outbox_flush(struct outbox *o)
{
    while (o->first) {
        struct job *j = o->first, *next = j->next; /* j is not ours after the push */
        if (queue_try_push(o->queue, &j))
            return;
        o->first = next;
        if (!next)
            o->tail = &o->first;
    }
}
