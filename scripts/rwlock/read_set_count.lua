-- rwlock/read_set_count: set the count of a reader's private holds, which nest.
-- Counts of acquisitions that share the id stay.
-- uses     lib/extend, lib/primary, lib/shared_counts
-- uses     rwlock/fit_ttl, rwlock/hold_keys, rwlock/readers
-- KEYS[1]  lock_hash
-- KEYS[2]  shared_counts
-- KEYS[3]  latest_change: of this count that was executed: a late copy of an earlier one does
--          nothing
-- KEYS[4]  memory_key (optional): of this owner's release, for a wanted count of 1; exists if a
--          late copy must not count
-- ARGV[1]  owner (text): id
-- ARGV[2]  wanted_private (number): count, at least 1
-- ARGV[3]  ttl_ms (ms): of an additional hold; 0 after a release
-- ARGV[4]  needed_ms (number): after a release: what the other holds need; -1 to keep the longest
--          lease
-- ARGV[5]  change (number): of this change
-- ARGV[6]  memory_ttl_ms (ms)
-- returns  number: 1, or 0 when the reader is dead, or has no private count
local lock_hash, shared_counts, latest_change, memory_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, wanted_private, ttl_ms, needed_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local change, memory_ttl_ms = ARGV[5], ARGV[6]

-- unchanged answers without a count. It is not called before an acquisition: after a write that a
-- full Redis allows, the others pass, too.
local function unchanged(answer)
  require_primary(lock_hash)
  return answer
end

if memory_key and redis.call('exists', memory_key) == 1 then
  return unchanged(0)
end
local prefix = hold_prefix(lock_hash)
local count = tonumber(redis.call('hget', lock_hash, owner) or 0) or 0
local hash_ttl = redis.call('pttl', lock_hash)
local left = reader_ttl(prefix, owner, count, hash_ttl > 0 and hash_ttl or nil)
if left == 0 then
  return unchanged(0)
end
if tonumber(redis.call('get', latest_change) or 0) > tonumber(change) then
  return unchanged(1)
end
local shared = shared_count(shared_counts, owner, count)
-- See lock/nested_acquire.
if count == shared and not (wanted_private == '1' and ttl_ms ~= '0') then
  return unchanged(0)
end
local wanted = tonumber(wanted_private) + shared
if ttl_ms ~= '0' then
  -- The count of a hold whose lease has ended may still be there, without its key.
  local key = hold_key(prefix, owner, wanted)
  if redis.call('pttl', key) < tonumber(ttl_ms) then
    redis.call('set', key, '1', 'px', ttl_ms)
  end
  if wanted > count then
    redis.call('hset', lock_hash, owner, wanted)
  end
  extend(lock_hash, ttl_ms)
else
  redis.call('del', latest_change) -- a full Redis allows what follows
  if wanted < count then
    local need = math.min(tonumber(needed_ms), left)
    if need < 0 or shared > 0 then
      need = left
    end
    lower_count(lock_hash, prefix, owner, count, wanted, need)
    if need < left then -- the released hold had the longest lease
      for n = 1, holds_of(wanted) do
        local key = hold_key(prefix, owner, n)
        if redis.call('pttl', key) > need then
          redis.call('pexpire', key, need)
        end
      end
      if redis.call('hget', lock_hash, 'mode') ~= 'write' then
        fit_ttl(lock_hash, prefix, left)
      end
    end
  end
end
redis.call('set', latest_change, change, 'px', memory_ttl_ms)
return 1
