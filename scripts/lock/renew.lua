-- lock/renew: extend many locks, each for its owner; a longer TTL stays.
-- uses     lib/count, lib/extend, lib/longer, lib/primary, lib/typed
-- KEYS[1..]  each.lock_hash
-- ARGV[1..]  each.owner (text), each.ttl_ms (ms)
-- returns    kept: 1 for each lock, its pttl if that is longer, or 0 when its owner does not hold
--            it any more or the key has another type; the time if one is longer
local lock_hashes, owners_and_ttls = KEYS, ARGV

require_primary(lock_hashes[1])
local kept = {}
for i, lock_hash in ipairs(lock_hashes) do
  local owner, ttl_ms = owners_and_ttls[2 * i - 1], owners_and_ttls[2 * i]
  kept[i] = read_count(call_typed('hash', 'hget', lock_hash, owner)) and 1 or 0
  if kept[i] == 1 then
    kept[i] = kept_for(extend(lock_hash, ttl_ms), ttl_ms)
  end
end
return with_time(kept)
