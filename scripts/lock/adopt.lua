-- lock/adopt: replace a holder's owner id by a new one, which takes over all its counts.
-- uses     lib/acl, lib/count, lib/extend, lib/holder, lib/primary, lib/shared_counts
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: on which the release will be published
-- KEYS[3]  memory_key: of the new id's release; exists if a late copy must not adopt
-- KEYS[4]  shared_counts
-- KEYS[5]  queue (optional): of a fair lock only; so are the next ones. They are not used here. The
--          release needs them, so Redis refuses an adopter that has no rights on them
-- KEYS[6]  deadlines (optional)
-- KEYS[7]  waiters (optional)
-- KEYS[8]  clients (optional)
-- ARGV[1]  new_owner (text): id
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- ARGV[4]  old_owner (text): the holder's id
-- returns  number: how many counts were taken over, or 0 when that holder has none
local lock_hash, channel, memory_key, shared_counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local new_owner, ttl_ms, publish, old_owner = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('exists', memory_key) == 1 then
  return 0
end
require_primary(memory_key)
local holder, foreign_data = holder_of(lock_hash)
if foreign_data then
  return foreign_data
elseif holder ~= new_owner and holder ~= old_owner then
  return 0
end
local count = read_count(redis.call('hget', lock_hash, new_owner))
if count then
  -- A copy of this request. The lock may have been extended since.
  extend(lock_hash, ttl_ms)
  return count
end
count = read_count(redis.call('hget', lock_hash, old_owner))
if not count then
  return 0
end
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
-- Set the new field first: a hash that loses its last field is deleted, with its TTL.
redis.call('hset', lock_hash, new_owner, count)
redis.call('hdel', lock_hash, old_owner)
forget_shared_count(shared_counts, old_owner)
redis.call('pexpire', lock_hash, ttl_ms)
return count
