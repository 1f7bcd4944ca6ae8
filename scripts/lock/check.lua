-- lock/check: ask whether the owner still holds the lock.
-- uses     lib/count, lib/primary, lib/typed
-- KEYS[1]  lock_hash
-- ARGV[1]  owner (text): id
-- returns  number: 1 or 0
local lock_hash, owner = KEYS[1], ARGV[1]

require_primary(lock_hash)
return read_count(call_typed('hash', 'hget', lock_hash, owner)) and 1 or 0
