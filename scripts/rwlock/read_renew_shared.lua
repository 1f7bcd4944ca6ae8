-- rwlock/read_renew_shared: extend the leases of many readers, each for an owner's acquisition.
-- The acquisitions are those with WithOwner. All holds of a reader are extended; a longer TTL
-- stays.
-- uses     lib/extend, lib/primary, lib/shared_counts, lib/typed, rwlock/hold_keys, rwlock/readers
-- KEYS[1..]  each.lock_hash, each.hold_key, each.shared_counts: the hold key is that of its first
--            hold (see rwlock/read_renew)
-- ARGV[1..]  each.owner (text), each.ttl_ms (ms), each.memory_key (text): the memory key is that of
--            the acquisition. A ttl of 0 extends nothing
-- returns    kept: 1 for each acquisition, or 0 when its reader is dead, it has no count any more
--            or the lock's key has another type
local all_keys, all_args = KEYS, ARGV

require_primary(all_keys[1])
local kept = {}
for i = 1, #all_keys / 3 do
  local lock_hash, shared_counts = all_keys[3 * i - 2], all_keys[3 * i]
  local owner, ttl_ms, memory_key = unpack(all_args, 3 * i - 2, 3 * i)
  local prefix, count = hold_prefix(lock_hash), call_typed('hash', 'hget', lock_hash, owner)
  kept[i] = 0
  if reader_ttl(prefix, owner, count, 1) > 0
    and has_shared_count(shared_counts, owner, memory_key) then
    if ttl_ms ~= '0' then
      renew_holds(lock_hash, prefix, owner, count, tonumber(ttl_ms))
      extend(shared_counts, ttl_ms)
    end
    kept[i] = 1
  end
end
return kept
