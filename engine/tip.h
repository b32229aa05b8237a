/* The tip: everything besides the planes that a sequence needs to go on bit-exactly.
 *
 * Fixed size for a model, all integers and floats little-endian:
 *
 *     offset  size
 *          0     8  magic "agentTIP"
 *          8     4  version, 2 (in 1 the draft layers' rings were empty)
 *         12     4  precision mode
 *         16     8  bytes in all
 *         24    32  shape: digest of what the sizes below follow from
 *         56     8  position (tokens computed)
 *         64    24  first readable position of a window, per class of layers; 0 where
 *                   that is out of every later window's reach
 *         88     4  bit 0: an input segment is open; bit 1: the last row is there
 *         92     4  its prefill mode
 *         96     8  its start
 *        104     8  its length
 *        112    28  last 7 ids, oldest first, 2^32-1: none
 *        140     4  zero
 *        144        rings [layers][W][row]: position p in slot p % W, zeros where nothing
 *                   may be read; then the same for the draft layers
 *                   unfinished groups [sources][2][head_dim] f32
 *                   last row [hidden_size] f32: the collapsed stream before the final norm,
 *                   from which the next token is sampled
 *     end-32    32  BLAKE2b-256 of all before
 *
 * The bytes are a function of the sequence's past alone: what may not be read is zero. */
#ifndef ENGINE_TIP_H
#define ENGINE_TIP_H

#define TIP_VERSION 2

#endif
