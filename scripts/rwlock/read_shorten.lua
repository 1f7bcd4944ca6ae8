-- rwlock/read_shorten: shorten the leases of a reader, which needs them for ttl_ms only.
-- See lock/shorten. The lock's hash then lasts as long as its longest-lived reader.
-- uses     lib/early_release, lib/fresh, lib/primary, lib/shared_counts
-- uses     rwlock/fit_ttl, rwlock/hold_keys, rwlock/notify_free, rwlock/readers
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: of releases
-- KEYS[3]  memory_key: of the acquisition; of its release: see lock/shorten
-- KEYS[4]  hold_key: of the reader's first hold, see rwlock/read_check
-- KEYS[5]  shared_counts
-- ARGV[1]  owner (text): id
-- ARGV[2]  publish (command)
-- ARGV[3]  is_shared (flag): others may have counts of the id
-- ARGV[4]  ttl_ms (ms)
-- ARGV[5]  memory_ttl_ms (ms): 0 when no copy of the acquisition can come, or with seen_at
-- ARGV[6]  counts (number, optional): that belong to the owner
-- ARGV[7]  seen_at (number, optional): when a renewal found the longer leases, by the server's
--          clock, ms
-- returns  number: 1 if the leases end in time now, 2 if they were left as they are, 0 if it does
--          not read
local lock_hash, memory_key, shared_counts, all_keys = KEYS[1], KEYS[3], KEYS[5], KEYS
local owner, publish, is_shared, ttl_ms = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
local memory_ttl_ms, counts, seen_at = ARGV[5], ARGV[6], ARGV[7]

local is_released = not seen_at
require_primary(lock_hash)
if is_released and redis.call('exists', memory_key) == 1 then
  return 1 -- a copy of this request
end
local prefix = hold_prefix(lock_hash)
local held = redis.call('hget', lock_hash, owner)
local left = held and reader_ttl(prefix, owner, held) or 0
if left == 0 or is_shared and not has_shared_count(shared_counts, owner, memory_key) then
  return 0
end

-- shorten_leases returns whether it has shortened the leases, or need not.
local function shorten_leases()
  local is_alone = are_own_counts(shared_counts, owner, held, counts, is_shared and memory_key)
  if not is_alone or seen_at and not is_fresh(seen_at) then
    return false
  end
  if left <= ttl_ms then
    return true
  end
  for n = 1, holds_of(held) do
    local key = hold_key(prefix, owner, n)
    if redis.call('pttl', key) > ttl_ms then
      redis.call('pexpire', key, ttl_ms)
    end
  end
  if redis.call('hget', lock_hash, 'mode') == 'read' then -- a writer's lease stays
    fit_ttl(lock_hash, prefix, left)
    notify_rest(all_keys, publish)
  end
  return true
end

-- The first write is one that a full Redis allows.
local is_shortened = shorten_leases()
if is_released and is_shared then
  give_back_count(shared_counts, owner, held, memory_key, function()
    lower_count(lock_hash, prefix, owner, held, held - 1, left)
  end)
end
if is_released then
  remember_early_release(memory_key, is_shared and '2' or 'rests', memory_ttl_ms)
end
return is_shortened and 1 or 2
