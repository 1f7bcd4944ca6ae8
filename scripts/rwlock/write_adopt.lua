-- rwlock/write_adopt: replace a writer's owner id by a new one, which takes over all its counts.
-- The old id's read holds are removed.
-- uses     lib/acl, lib/count, lib/extend, lib/primary, lib/shared_counts
-- uses     rwlock/foreign, rwlock/hold_keys, rwlock/readers
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: of releases
-- KEYS[3]  memory_key: of this request: 1 acquired, 2 released, 3 must not acquire
-- KEYS[4]  claim_key: of a waiting writer
-- KEYS[5]  shared_counts
-- ARGV[1]  new_owner (text): id
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- ARGV[4]  old_owner (text): the writer's id
-- returns  number: how many counts were taken over, or 0 when that writer has none
local lock_hash, channel, memory_key, shared_counts = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local new_owner, ttl_ms, publish, old_owner = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local new_field, old_field = new_owner .. ':write', old_owner .. ':write'
if redis.call('exists', memory_key) == 1 then
  return 0
end
require_primary(lock_hash)
local foreign_data = foreign_data_of(lock_hash)
if foreign_data then
  return foreign_data
end
local count = read_count(redis.call('hget', lock_hash, new_field))
if count then -- a copy of this request
  extend(lock_hash, ttl_ms)
  return count
end
count = read_count(redis.call('hget', lock_hash, old_field))
if not count then
  return 0
end
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
redis.call('hset', lock_hash, new_field, count)
redis.call('hdel', lock_hash, old_field)
local reads = redis.call('hget', lock_hash, old_owner) or 0
remove_reader(lock_hash, hold_prefix(lock_hash), old_owner, reads)
forget_shared_count(shared_counts, old_field)
forget_shared_count(shared_counts, old_owner)
redis.call('pexpire', lock_hash, ttl_ms)
return count
