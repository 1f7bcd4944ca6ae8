-- lock/release: free the lock of an id that belongs to one acquisition alone, or hand it on.
-- An heir waits for it and gets it at once. A late copy of the id's acquisition takes nothing.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel
-- KEYS[3]  memory of this id's release: 0 not held, 1 freed, or the heir
-- KEYS[4]  memory of the heir's release, if there is an heir
-- KEYS[5]  fencing token, of a fenced lock with an heir only
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- ARGV[4]  heir's id, which belongs to one acquisition alone; none: nobody is to inherit
-- ARGV[5]  heir's ttl, ms
-- returns  0 when it was not held; {token, or 0} when the heir has it now; else 1 and how many heard of the release
local heir = ARGV[4]
if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
  -- In both branches the first write is one that a full Redis allows.
  if heir and redis.call('exists', KEYS[4]) == 0 then
    redis.call('pexpire', KEYS[1], ARGV[5])
    redis.call('hset', KEYS[1], heir, 1)
    redis.call('hdel', KEYS[1], ARGV[1])
    redis.call('set', KEYS[3], heir, 'px', ARGV[3])
    return {KEYS[5] and redis.call('incr', KEYS[5]) or 0}
  end
  redis.call('del', KEYS[1])
  redis.call('set', KEYS[3], 1, 'px', ARGV[3])
  return 1 + (tell(ARGV[2]) or 0)
end
local memory = redis.call('get', KEYS[3])
if not memory then
  redis.call('del', KEYS[3])
  redis.call('set', KEYS[3], 0, 'px', ARGV[3])
  return 0
end
if memory == heir and redis.call('hexists', KEYS[1], heir) == 1 then
  -- A copy: the heir counts its lease from the one that is answered.
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[5]) then
    redis.call('pexpire', KEYS[1], ARGV[5])
  end
  return {KEYS[5] and tonumber(redis.call('get', KEYS[5]) or 0) or 0}
end
return tonumber(memory) or 1
