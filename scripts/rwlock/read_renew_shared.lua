-- rwlock/read_renew_shared: extend the leases of many readers, each for an owner's acquisition.
-- The acquisitions are those with WithOwner. All holds of a reader are extended; a longer TTL
-- stays.
-- uses     lib/extend, lib/longer, lib/primary, lib/shared_counts, lib/typed
-- uses     rwlock/hold_keys, rwlock/readers
-- KEYS[1..]  each.lock_hash, each.hold_key, each.shared_counts: the hold key is that of its first
--            hold (see rwlock/read_renew)
-- ARGV[1..]  each.owner (text), each.ttl_ms (ms), each.memory_key (text): the memory key is that of
--            the acquisition. A ttl of 0 extends nothing
-- returns    kept:
--            1 for each acquisition, the pttl of its reader's longest hold if that is longer, or
--              0 when its reader is dead, it has no count any more or the lock's key has another
--              type;
--            the time if one is longer
local all_keys, all_args = KEYS, ARGV

require_primary(all_keys[1])
local kept = {}
for i = 1, #all_keys / 3 do
  local lock_hash, shared_counts = all_keys[3 * i - 2], all_keys[3 * i]
  local owner, ttl_ms, memory_key = unpack(all_args, 3 * i - 2, 3 * i)
  local prefix, count = hold_prefix(lock_hash), call_typed('hash', 'hget', lock_hash, owner)
  kept[i] = 0
  local left = reader_ttl(prefix, owner, count, ttl_ms + 1)
  if left > 0 and has_shared_count(shared_counts, owner, memory_key) then
    kept[i] = 1
    if ttl_ms ~= '0' then
      kept[i] = kept_for(left, ttl_ms)
      renew_holds(lock_hash, prefix, owner, count, tonumber(ttl_ms))
      extend(shared_counts, ttl_ms)
    end
  end
end
return with_time(kept)
