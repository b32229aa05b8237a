/* Extents: what a pack consists of. One page-aligned header, then regions, each from a page on.
 *
 *     header    fields, region table, one tag for each chunk, in the last 16 bytes its own tag
 *     region 0  token ids, u32 LE (blocks and tails), or the tip
 *     region 1. planes: index planes first, then main ones, each in the order of the layout
 *
 * A region is cut into chunks of 16 KiB (the last one shorter, still whole pages; what is
 * behind the region's bytes is 0). Chunk tags are XChaCha20-Poly1305 under a key of the
 * namespace and the extent's nonce, chunks numbered through the extent: any run of chunks can
 * be verified alone. The algorithm says whether chunks are tagged (readable, encrypt=off) or
 * sealed (encrypt=on); extents of both kinds may stand in one pack. Headers are never
 * encrypted: they hold no token and no row. The header's tag is BLAKE2b-128 over its bytes, the
 * pack's uuid and the extent's place in it, so a header that was moved, or swapped with one of
 * another pack, does not verify.
 *
 * Header fields, little endian (offset, bytes):
 *
 *       0   8  magic "AGDEXT1\n"         208  32  session id, ASCII, 0 padded
 *       8   4  version 1                 240   8  first token
 *      12   4  header pages              248   8  last token (not included); a tip: = first
 *      16   4  kind                      256   8  number of the state commit
 *      20   4  algorithm                 264   4  lineage: replays behind these rows
 *      24   4  pages in all              268   4  tokens of a block in this store
 *      28   4  regions                   272  24  numerics class
 *      32   4  chunks                    296   8  written at, Unix ms
 *      36   4  flags (1: tip inside a    304  32  digest of the open segment (tip)
 *              segment)                  336   8  rows in that digest
 *      40  24  nonce                     344  32  fingerprint of the model
 *      64  32  root                      376   8  tip size of the layout
 *      96  32  key (a tail: of the       384 128  0, for later versions
 *              block it is behind)
 *     128  32  key of the parent block
 *     160  32  digest of the rows, chained
 *     192  16  digest of what is before, first half
 *
 * then regions of 64 bytes: name 24, what 4 (0 ids, 1 index plane, 2 main plane, 3 tip, 4 list
 * of extents), row bytes 4, ratio 4, first page 4, bytes 8, first chunk 4, place in the
 * layout's plane table 4, 8 zero; then 16 bytes a chunk. The struct below is that header;
 * encode and decode are each other's inverse. */
#ifndef SESSIONS_EXTENT_H
#define SESSIONS_EXTENT_H

#include "base/crypto.h"
#include "base/state.h"

#define EXTENT_PAGE 4096u
#define EXTENT_CHUNK 16384u
#define EXTENT_MAX_REGIONS (STATE_MAX_PLANES + 1)
#define EXTENT_MAX_HEADER_PAGES 256u
#define EXTENT_MAX_PAGES (1u << 20) /* 4 GiB */
#define EXTENT_SESSION_BYTES 32

/* What the extents of a namespace are written and read with: all follow from its data key. */
struct extent_keys {
    uint8_t header[CRYPTO_KEY_BYTES]; /* of the tags of headers, lists' trailers included */
    uint8_t tag[CRYPTO_KEY_BYTES];    /* of EXTENT_TAGGED chunks */
    uint8_t seal[CRYPTO_KEY_BYTES];   /* of EXTENT_SEALED chunks */
};

enum extent_kind { EXTENT_BLOCK = 1, EXTENT_TAIL, EXTENT_TIP, EXTENT_LIST };
enum extent_algorithm { EXTENT_TAGGED = 1, EXTENT_SEALED = 2 };
enum region_kind { REGION_IDS, REGION_INDEX, REGION_MAIN, REGION_TIP, REGION_LIST };

struct extent_region {
    char name[24]; /* of the plane */
    enum region_kind what;
    uint32_t row_bytes, ratio; /* of a plane */
    uint32_t page;             /* first page, from the extent's beginning */
    uint32_t chunk;            /* number of its first chunk */
    uint64_t bytes;            /* without the padding */
    uint32_t plane;            /* index in the layout */
};

struct extent {
    enum extent_kind kind;
    enum extent_algorithm algorithm;
    uint32_t header_pages, pages, n_regions, n_chunks;
    bool inside_segment;
    uint8_t nonce[CRYPTO_NONCE_BYTES];
    uint8_t root[HASH_BYTES], key[HASH_BYTES], parent[HASH_BYTES];
    uint8_t digest[HASH_BYTES], before[HASH_TAG_BYTES];
    char session[EXTENT_SESSION_BYTES];
    uint64_t first, last, commit, written_ms;
    uint32_t lineage, block_tokens;
    char numerics[STATE_CLASS_BYTES];
    uint8_t segment_digest[HASH_BYTES];
    uint64_t digest_rows;
    uint8_t fingerprint[STATE_KEY_BYTES];
    uint64_t tip_bytes;
    struct extent_region regions[EXTENT_MAX_REGIONS];
};

/* Pages that n bytes take. */
static inline uint64_t extent_pages(uint64_t n_bytes)
{
    return (n_bytes + EXTENT_PAGE - 1) / EXTENT_PAGE;
}

/* Rows of a plane that the tokens [first, last) complete. */
static inline uint64_t extent_rows(uint64_t first, uint64_t last, uint32_t ratio)
{
    return last / ratio - first / ratio;
}

/* Lays out regions, chunks and pages of a block or tail for x->first, x->last and a layout.
 * ERR_LIMIT: too large for an extent. */
NODISCARD enum err extent_plan_rows(struct extent *x, const struct state_layout *l,
                                    struct error *e);
/* The same for one region of n bytes (a tip, a list). */
NODISCARD enum err extent_plan_one(struct extent *x, enum region_kind what, uint64_t n_bytes,
                                   struct error *e);

/* Tags every chunk of the extent that lies at `bytes` (x->pages pages, regions filled, padding
 * 0), encrypts it in place if x->algorithm is EXTENT_SEALED, and writes the header in front.
 */
void extent_seal(const struct extent *x, const struct extent_keys *k, const uint8_t *pack_uuid,
                 uint64_t off, uint8_t *bytes);
/* Gives a whole header (n_bytes, verified at its old place) the tag of another place: for an
 * extent that is copied as it is, chunks untouched. */
void extent_move(uint8_t *header, size_t n_bytes, const struct extent_keys *k,
                 const uint8_t *pack_uuid, uint64_t off);

/* How many pages the header has that begins with this page; 0 if it is none. */
uint32_t extent_header_pages(const uint8_t page[EXTENT_PAGE]);
/* Checks a whole header and takes it apart. ERR_FORMAT: no header, or of a later version.
 * ERR_CORRUPT: its tag does not match. */
NODISCARD enum err extent_decode(const uint8_t *header, size_t n_bytes,
                                 const uint8_t header_key[CRYPTO_KEY_BYTES],
                                 const uint8_t *pack_uuid, uint64_t off, struct extent *out,
                                 struct error *e);
/* Chunks of a region. */
uint32_t extent_chunks(const struct extent_region *r);
/* Checks a region's chunks [first, first + n) against the tags in the header they came with,
 * and decrypts them in place if they are sealed. data: where chunk `first` begins; the region's
 * last chunk comes with its padding. Any thread. ERR_CORRUPT names region and chunk; sealed
 * chunks from that one on are then not decrypted. */
NODISCARD enum err extent_open_chunks(const struct extent *x, const uint8_t *header,
                                      const struct extent_region *r, uint32_t first, uint32_t n,
                                      const struct extent_keys *k, void *data, struct error *e);
/* The whole region, with its padding. */
NODISCARD enum err extent_open(const struct extent *x, const uint8_t *header,
                               const struct extent_region *r, const struct extent_keys *k,
                               void *data, struct error *e);

#endif
