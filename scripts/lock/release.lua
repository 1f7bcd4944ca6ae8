-- lock/release: free the lock of an id that belongs to one acquisition alone, or hand it on.
-- An heir waits for it and gets it at once. A late copy of the id's acquisition takes nothing.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel
-- KEYS[3]  given back: set of the places of those acquisitions that were, each also with a minus if it held nothing then
-- KEYS[4]  the same for the heir, if there is one
-- KEYS[5]  fencing token, of a fenced lock with an heir only
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- ARGV[4]  this acquisition's place in the set
-- ARGV[5]  heir's id, which belongs to one acquisition alone; none: nobody is to inherit
-- ARGV[6]  heir's ttl, ms
-- ARGV[7]  the heir's place
-- returns  0 when it was not held; {token, or 0} when the heir has it now; else 1 and how many heard of the release
local heir = ARGV[5]
if redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
  -- In both branches the first write is one that a full Redis allows.
  local inherits = heir and redis.call('sismember', KEYS[4], ARGV[7]) == 0
  if inherits then
    redis.call('pexpire', KEYS[1], ARGV[6])
    redis.call('hset', KEYS[1], heir, 1)
    redis.call('hdel', KEYS[1], ARGV[1])
  else
    redis.call('del', KEYS[1])
  end
  redis.call('sadd', KEYS[3], ARGV[4])
  redis.call('pexpire', KEYS[3], ARGV[3])
  if inherits then
    return {KEYS[5] and redis.call('incr', KEYS[5]) or 0}
  end
  return 1 + (tell(ARGV[2]) or 0)
end
if redis.call('sismember', KEYS[3], ARGV[4]) == 0 then
  redis.call('pexpire', KEYS[3], ARGV[3])
  redis.call('sadd', KEYS[3], ARGV[4], '-' .. ARGV[4])
  redis.call('pexpire', KEYS[3], ARGV[3])
  return 0
end
if redis.call('sismember', KEYS[3], '-' .. ARGV[4]) == 1 then
  return 0
end
if heir and redis.call('hexists', KEYS[1], heir) == 1 then
  -- A copy: the heir counts its lease from the one that is answered.
  if redis.call('pttl', KEYS[1]) < tonumber(ARGV[6]) then
    redis.call('pexpire', KEYS[1], ARGV[6])
  end
  return {KEYS[5] and tonumber(redis.call('get', KEYS[5]) or 0) or 0}
end
return 1
