-- lock/release: free the lock of an id that belongs to one acquisition alone, or hand it off to a successor.
-- The successor waits for the lock and gets it at once. A late copy of the id's acquisition takes nothing. Counts of callers of
-- WithOwner stay.
-- uses     tell, shared
-- KEYS[1]  lock hash
-- KEYS[2]  channel
-- KEYS[3]  released: set of places of acquisitions; each that held nothing then also with a minus
-- KEYS[4]  shared counts
-- KEYS[5]  the same as KEYS[3] for the successor, if there is one
-- KEYS[6]  fencing token, of a fenced lock with a successor only
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- ARGV[4]  this acquisition's place in the set
-- ARGV[5]  the successor's id, which belongs to one acquisition alone; none: there is no successor
-- ARGV[6]  the successor's ttl, ms
-- ARGV[7]  the successor's place
-- returns  0 when it was not held; {token, or 0} when the successor has the lock now; else 1 and how many received the release message
local hash, id, successor = KEYS[1], ARGV[1], ARGV[5]

-- remember keeps the answer for copies of this release, and refuses late copies of the acquisition.
local function remember(...)
  redis.call('sadd', KEYS[3], ...)
  redis.call('pexpire', KEYS[3], ARGV[3])
end

local count = tonumber(redis.call('hget', hash, id))
if count then
  -- In all branches the first write is one that a full Redis allows.
  local shared = shared_of(KEYS[4], id, count)
  if shared > 0 then
    redis.call('pexpire', hash, math.max(redis.call('pttl', hash), 1))
    redis.call('hset', hash, id, shared)
    remember(ARGV[4])
    return 1
  end
  local handed = successor and redis.call('sismember', KEYS[5], ARGV[7]) == 0
  if handed then
    redis.call('pexpire', hash, ARGV[6])
    redis.call('hset', hash, successor, 1)
    redis.call('hdel', hash, id)
  else
    redis.call('del', hash)
  end
  remember(ARGV[4])
  if handed then
    return {KEYS[6] and redis.call('incr', KEYS[6]) or 0}
  end
  return 1 + (tell(ARGV[2]) or 0)
end
if redis.call('sismember', KEYS[3], ARGV[4]) == 0 then
  redis.call('pexpire', KEYS[3], ARGV[3]) -- a full Redis allows what follows
  remember(ARGV[4], '-' .. ARGV[4])
  return 0
end
if redis.call('sismember', KEYS[3], '-' .. ARGV[4]) == 1 then
  return 0
end
if successor and redis.call('hexists', hash, successor) == 1 then
  -- This is a copy. The successor counts its lease from the copy that is answered.
  if redis.call('pttl', hash) < tonumber(ARGV[6]) then
    redis.call('pexpire', hash, ARGV[6])
  end
  return {KEYS[6] and tonumber(redis.call('get', KEYS[6]) or 0) or 0}
end
return 1
