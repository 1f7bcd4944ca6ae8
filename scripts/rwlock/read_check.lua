-- rwlock/read_check: ask whether a reader is alive.
-- uses     lib/primary, lib/typed, rwlock/hold_keys, rwlock/readers
-- KEYS[1]  lock_hash
-- KEYS[2]  hold_key: of the reader's first hold. The script derives this name itself; it is in KEYS
--          so that Redis answers TRYAGAIN while the slot moves, and the reader does not look dead
-- ARGV[1]  owner (text): id
-- returns  number: 1 or 0
local lock_hash, owner = KEYS[1], ARGV[1]

require_primary(lock_hash)
local count = call_typed('hash', 'hget', lock_hash, owner)
return reader_ttl(hold_prefix(lock_hash), owner, count, 1) > 0 and 1 or 0
