-- lock/nest: set the count of a hold that is nested in.
-- uses     shared
-- KEYS[1]  lock hash
-- KEYS[2]  shared counts
-- ARGV[1]  field of the owner
-- ARGV[2]  wanted count
-- ARGV[3]  ttl, ms; a longer one stays
-- returns  1, or 0 when the lock is not this owner's any more
local count = tonumber(redis.call('hget', KEYS[1], ARGV[1]))
if not count then
  return 0
end
redis.call('hset', KEYS[1], ARGV[1], ARGV[2] + shared_of(KEYS[2], ARGV[1], count))
if redis.call('pttl', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('pexpire', KEYS[1], ARGV[3])
end
return 1
