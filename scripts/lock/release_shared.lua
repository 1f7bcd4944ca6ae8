-- lock/release_shared: release one count of an owner id that may be shared.
-- The count belongs to one acquisition. If that has lost it, nothing is released, even if others
-- have acquired with the same id since, so a copy changes nothing, however late it is.
-- notify_free is in lib/notify_free, and for fair locks in fairlock/notify_free.
-- uses     lib/acl, lib/holder, lib/set_count, lib/shared_counts, notify_free
-- KEYS[1]  lock_hash
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request: 2 released, 3 nothing to release
-- KEYS[4]  shared_counts
-- KEYS[5]  line: of waiting clients, for notify_free
-- ARGV[1]  owner (text): id
-- ARGV[2]  publish (command)
-- ARGV[3]  memory_ttl_ms (ms)
-- ARGV[4]  only_own (flag): release the count of this acquisition; else any count of the id
-- ARGV[5]  default_ttl_ms (ms): if the lock hash has none
-- returns  released: 1 when a count was released, 0 when there was none
local lock_hash, channel, memory_key = KEYS[1], KEYS[2], KEYS[3]
local shared_counts, all_keys = KEYS[4], KEYS
local owner, publish, memory_ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local only_own, default_ttl_ms = ARGV[4] == '1', ARGV[5]

local memory = redis.call('get', memory_key)
if memory == '2' then
  return 1
elseif memory == '3' then
  return 0
end
local holder, foreign_data = holder_of(lock_hash)
local refusal = not only_own and (foreign_data or publish_denied(publish, channel))
if refusal then
  return refusal
end
local count = holder == owner and tonumber(redis.call('hget', lock_hash, owner))
if not count or (only_own and not has_shared_count(shared_counts, owner, memory_key)) then
  redis.call('del', memory_key)
  redis.call('set', memory_key, '3', 'px', memory_ttl_ms)
  return 0
end
-- In all branches the first write is one that a full Redis allows; the other writes then pass,
-- too.
if count > 1 then
  local ttl_ms = redis.call('pttl', lock_hash)
  set_count(lock_hash, owner, count - 1, ttl_ms < 0 and default_ttl_ms or ttl_ms)
  remove_shared_count(shared_counts, owner, only_own and memory_key)
else
  redis.call('del', lock_hash)
  forget_shared_count(shared_counts, owner)
  notify_free(all_keys, publish)
end
redis.call('set', memory_key, '2', 'px', memory_ttl_ms)
return 1
