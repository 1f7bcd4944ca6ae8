-- rwlock/writeadopt: put a fresh id in the place of a writer's, with all its counts. What the former one reads beside is taken back.
-- uses     channel, readers
-- KEYS[1]  lock hash
-- KEYS[2]  channel of releases
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 never to enter
-- KEYS[4]  claim of a waiting writer
-- KEYS[5]  shared counts
-- ARGV[1]  fresh id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  the writer's id
-- returns  the counts taken over, or 0 when that writer has none
local hash, ttl = KEYS[1], ARGV[2]
local fresh, field = ARGV[1] .. ':write', ARGV[4] .. ':write'
if redis.call('exists', KEYS[3]) == 1 then
  return 0
end
local count = redis.call('hget', hash, fresh)
if count then -- this is a repetition
  raise(hash, ttl)
  return tonumber(count)
end
count = redis.call('hget', hash, field)
if not count then
  return 0
end
local denied = may_publish(ARGV[3], KEYS[2])
if denied then
  return denied
end
redis.call('hset', hash, fresh, count)
redis.call('hdel', hash, field)
bury(hash, prefix_of(hash), ARGV[4], redis.call('hget', hash, ARGV[4]) or 0)
redis.call('hdel', KEYS[5], field, ARGV[4])
redis.call('pexpire', hash, ttl)
return tonumber(count)
