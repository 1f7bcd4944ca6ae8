-- lock/renew_shared: extend many locks, each for an acquisition with WithOwner; a longer TTL stays.
-- uses     lib/extend, lib/longer, lib/primary, lib/shared_counts, lib/typed
-- KEYS[1..]  each.lock_hash, each.shared_counts
-- ARGV[1..]  each.field (text), each.ttl_ms (ms), each.memory_key (text): the field is that of the
--            owner, the memory key that of the acquisition. A ttl of 0 extends nothing
-- returns    kept: 1 for each acquisition, the pttl of its lock if that is longer, or 0 when it has
--            no count any more or the key has another type; the time if one is longer
local hashes_and_counts, all_args = KEYS, ARGV

require_primary(hashes_and_counts[1])
local kept = {}
for i = 1, #hashes_and_counts / 2 do
  local lock_hash, shared_counts = hashes_and_counts[2 * i - 1], hashes_and_counts[2 * i]
  local field, ttl_ms, memory_key = unpack(all_args, 3 * i - 2, 3 * i)
  kept[i] = 0
  if call_typed('hash', 'hexists', lock_hash, field) == 1
    and has_shared_count(shared_counts, field, memory_key) then
    kept[i] = 1
    if ttl_ms ~= '0' then
      kept[i] = kept_for(extend(lock_hash, ttl_ms), ttl_ms)
      extend(shared_counts, ttl_ms)
    end
  end
end
return with_time(kept)
