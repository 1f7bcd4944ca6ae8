-- rwlock/read_renew: extend the leases of many readers, with all holds; a longer TTL stays.
-- uses     lib/longer, lib/primary, lib/typed, rwlock/hold_keys, rwlock/readers
-- KEYS[1..]  each.lock_hash, each.hold_key: the hold key is that of its first hold. The script
--            derives that name itself; it is in KEYS so that Redis answers TRYAGAIN while the slot
--            moves, and the reader does not look dead
-- ARGV[1..]  each.owner (text), each.ttl_ms (ms)
-- returns    kept: 1 for each reader, the pttl of its longest hold if that is longer, or 0 when it
--            is dead or the lock's key has another type; the time if one is longer
local hashes_and_holds, owners_and_ttls = KEYS, ARGV

require_primary(hashes_and_holds[1])
local kept = {}
for i = 1, #hashes_and_holds / 2 do
  local lock_hash = hashes_and_holds[2 * i - 1]
  local owner, ttl_ms = owners_and_ttls[2 * i - 1], tonumber(owners_and_ttls[2 * i])
  local prefix, count = hold_prefix(lock_hash), call_typed('hash', 'hget', lock_hash, owner)
  kept[i] = 0
  local left = reader_ttl(prefix, owner, count, ttl_ms + 1)
  if left > 0 then
    renew_holds(lock_hash, prefix, owner, count, ttl_ms)
    kept[i] = kept_for(left, ttl_ms)
  end
end
return with_time(kept)
