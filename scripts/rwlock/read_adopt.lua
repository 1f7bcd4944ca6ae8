-- rwlock/read_adopt: replace a reader's owner id by a new one, which takes over all its holds.
-- uses     lib/acl, lib/extend, lib/primary, lib/shared_counts
-- uses     rwlock/fit_ttl, rwlock/foreign, rwlock/hold_keys, rwlock/readers
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: of releases
-- KEYS[3]  memory_key: of this request: 1 acquired, 2 released, 3 must not acquire
-- KEYS[4]  claim_key: of a waiting writer
-- KEYS[5]  shared_counts
-- ARGV[1]  new_owner (text): id
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- ARGV[4]  old_owner (text): the reader's id
-- returns  number: how many counts were taken over, 0 when that reader has none, -1 when it is also
--          the writer
local lock_hash, channel, memory_key, shared_counts = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local new_owner, ttl_ms, publish, old_owner = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

require_primary(lock_hash)
local prefix = hold_prefix(lock_hash)
if redis.call('exists', memory_key) == 1 then
  return 0
end
local foreign_data = foreign_data_of(lock_hash)
if foreign_data then
  return foreign_data
end
local count = redis.call('hget', lock_hash, new_owner)
if reader_ttl(prefix, new_owner, count) > 0 then -- a copy of this request
  for n = 1, holds_of(count) do
    extend(hold_key(prefix, new_owner, n), ttl_ms)
  end
  extend(lock_hash, ttl_ms)
  return tonumber(count)
end
count = redis.call('hget', lock_hash, old_owner)
local left = reader_ttl(prefix, old_owner, count)
if left == 0 then
  return 0
end
if redis.call('hget', lock_hash, 'mode') == 'write' then
  return -1
end
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
for n = 1, holds_of(count) do
  redis.call('set', hold_key(prefix, new_owner, n), '1', 'px', ttl_ms)
end
redis.call('hset', lock_hash, new_owner, count)
remove_reader(lock_hash, prefix, old_owner, count)
forget_shared_count(shared_counts, old_owner)
extend(lock_hash, ttl_ms)
fit_ttl(lock_hash, prefix, left)
return tonumber(count)
