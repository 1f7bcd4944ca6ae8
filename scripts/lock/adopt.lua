-- lock/adopt: put a fresh id in the place of a holder's, with all its counts.
-- uses     channel, ended
-- KEYS[1]  lock hash
-- KEYS[2]  channel on which the release will be told
-- KEYS[3]  memory of the fresh id's release: see what ended is
-- KEYS[4]  shared counts
-- ARGV[1]  fresh id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  the holder's id
-- ARGV[5]  the adoption's place, if that is a set
-- returns  the counts taken over, or 0 when that holder has none
if ended(ARGV[5]) then
  return 0
end
local count = redis.call('hget', KEYS[1], ARGV[1])
if count then
  -- A copy: the lock may have been extended since.
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('pexpire', KEYS[1], ARGV[2])
  end
  return tonumber(count)
end
count = redis.call('hget', KEYS[1], ARGV[4])
if not count then
  return 0
end
local denied = may_publish(ARGV[3], KEYS[2])
if denied then
  return denied
end
-- In this order: a hash that loses its last field is gone, with its ttl.
redis.call('hset', KEYS[1], ARGV[1], count)
redis.call('hdel', KEYS[1], ARGV[4])
redis.call('hdel', KEYS[4], ARGV[4])
redis.call('pexpire', KEYS[1], ARGV[2])
return tonumber(count)
