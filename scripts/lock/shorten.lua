-- lock/shorten: shorten the lease of an owner, which needs it for ttl_ms only.
-- There are two reasons:
--
-- 1. It was released before its minimum hold is over, so the lock stays taken for the rest of it. A
--    memory makes late copies of the acquisition acquire nothing. Of a shared id, only the last
--    count stays.
-- 2. The server's clock was set back, so that the lease lasts longer than was promised. The owner
--    goes on holding, and a copy must not shorten what is promised to it later: then counts and
--    seen_at are given.
--
-- The waiters learn that the lease is shorter. It stays as it is if others hold the lock with the
-- owner: their leases may be longer.
-- notify_rest is in lib/notify_free, and for fair and read-write locks in a file of their own.
-- uses     lib/early_release, lib/fresh, lib/primary, lib/set_count, lib/shared_counts, notify_free
-- KEYS[1]  lock_hash
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of the acquisition; of its release: 2 released, "rests" released, but its
--          private count stays
-- KEYS[4]  shared_counts
-- KEYS[5]  line: of waiting clients, for notify_rest
-- ARGV[1]  field (text): of the owner
-- ARGV[2]  publish (command)
-- ARGV[3]  is_shared (flag): others may have counts of the id
-- ARGV[4]  ttl_ms (ms)
-- ARGV[5]  memory_ttl_ms (ms): 0 when no copy of the acquisition can come, or with seen_at
-- ARGV[6]  counts (number, optional): that belong to the owner
-- ARGV[7]  seen_at (number, optional): when a renewal found the longer TTL, by the server's clock,
--          ms
-- returns  number: 1 if the lease ends in time now, 2 if it was left as it is, 0 if it was not held
local lock_hash, memory_key, shared_counts, all_keys = KEYS[1], KEYS[3], KEYS[4], KEYS
local field, publish, is_shared, ttl_ms = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
local memory_ttl_ms, counts, seen_at = ARGV[5], ARGV[6], ARGV[7]

local is_released = not seen_at
require_primary(lock_hash)
if is_released and redis.call('exists', memory_key) == 1 then
  return 1 -- a copy of this request
end
local held = redis.call('hget', lock_hash, field)
if not held or is_shared and not has_shared_count(shared_counts, field, memory_key) then
  return 0
end

-- shorten_ttl returns whether it has shortened the TTL, or need not.
local function shorten_ttl()
  local fields = redis.call('hlen', lock_hash) - redis.call('hexists', lock_hash, 'mode')
  local is_alone = fields == 1
    and are_own_counts(shared_counts, field, held, counts, is_shared and memory_key)
  if not is_alone or seen_at and not is_fresh(seen_at) then
    return false
  end
  local left = redis.call('pttl', lock_hash)
  if left < 0 or left > ttl_ms then
    redis.call('pexpire', lock_hash, ttl_ms)
    notify_rest(all_keys, publish)
  end
  return true
end

-- The first write is one that a full Redis allows.
local is_shortened = shorten_ttl()
if is_released and is_shared then
  give_back_count(shared_counts, field, held, memory_key, function()
    set_count(lock_hash, field, held - 1, redis.call('pttl', lock_hash))
  end)
end
if is_released then
  remember_early_release(memory_key, is_shared and '2' or 'rests', memory_ttl_ms)
end
return is_shortened and 1 or 2
