-- lock/force: free the lock, whoever holds it.
-- notify_free is in lib/notify_free, and for fair locks in fairlock/notify_free.
-- uses     lib/acl, lib/holder, lib/remember, notify_free
-- KEYS[1]  lock_hash
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  shared_counts
-- KEYS[5]  line: of waiting clients, for notify_free
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- returns  ids: {the holder's id}, 0 when there was none.
--          A copy of this request gets the same answer
local lock_hash, channel, memory_key = KEYS[1], KEYS[2], KEYS[3]
local shared_counts, all_keys = KEYS[4], KEYS
local publish, memory_ttl_ms = ARGV[1], ARGV[2]

local memory = redis.call('get', memory_key)
if memory then
  return cjson.decode(memory)
end
-- This also fails for a key of another type, which must not be deleted.
local holder, foreign_data = exclusive_holder_of(lock_hash)
local refusal = foreign_data or publish_denied(publish, channel)
if refusal then
  return refusal
end
local held = redis.call('del', lock_hash)
if redis.call('type', shared_counts).ok == 'hash' then
  redis.call('del', shared_counts)
end
if held == 1 then
  remember_list(memory_key, {holder}, memory_ttl_ms)
  notify_free(all_keys, publish)
  return {holder}
end
return remember_list(memory_key, 0, memory_ttl_ms)
