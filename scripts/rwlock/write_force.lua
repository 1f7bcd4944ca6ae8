-- rwlock/write_force: free the lock of its writer. The writer's read holds stay.
-- uses     lib/acl, lib/remember, lib/shared_counts
-- uses     rwlock/fit_ttl, rwlock/foreign, rwlock/hold_keys, rwlock/readers
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: of releases
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  claim_key: of a waiting writer
-- KEYS[5]  shared_counts
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- returns  ids: {the writer's id}, 0 when there was none.
--          A copy of this request gets the same answer
local lock_hash, channel, memory_key, shared_counts = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local publish, memory_ttl_ms = ARGV[1], ARGV[2]

local memory = redis.call('get', memory_key)
if memory then
  return cjson.decode(memory)
end
local refusal = no_rwlock(lock_hash) or publish_denied(publish, channel)
if refusal then
  return refusal
end
local writer = writer_of(lock_hash)
redis.call('del', memory_key) -- a full Redis allows what follows
if writer then
  redis.call('hdel', lock_hash, writer .. ':write')
  forget_shared_count(shared_counts, writer .. ':write')
  redis.call('hset', lock_hash, 'mode', 'read')
  fit_ttl(lock_hash, hold_prefix(lock_hash), math.huge)
  redis.call(publish, channel, '1')
end
return remember_list(memory_key, writer and {writer} or 0, memory_ttl_ms)
