-- lock/unnest: set the count of a hold when a nested one is released.
-- uses     shared
-- KEYS[1]  lock hash
-- KEYS[2]  shared counts
-- ARGV[1]  field of the owner
-- ARGV[2]  wanted count, at least 1
-- ARGV[3]  ttl, ms, if the key has none
-- returns  1, or 0 when the lock is not this owner's any more
local count = tonumber(redis.call('hget', KEYS[1], ARGV[1]))
if not count then
  return 0
end
-- The first write is one that a full Redis allows; the count may then be written too.
local ttl = redis.call('pttl', KEYS[1])
redis.call('pexpire', KEYS[1], ttl > 0 and ttl or ARGV[3])
redis.call('hset', KEYS[1], ARGV[1], ARGV[2] + shared_of(KEYS[2], ARGV[1], count))
return 1
