-- lock/release: release the lock of an owner id that is not shared, or hand it off.
-- The successor waits for the lock and gets it at once. A late copy of this id's acquisition
-- acquires nothing. Counts of acquisitions with WithOwner stay.
-- uses     lib/extend, lib/shared_counts, lib/notify_free
-- KEYS[1]  lock hash
-- KEYS[2]  channel
-- KEYS[3]  released: set of the numbers of released acquisitions; an acquisition that held nothing
--          when it was released has its number there with a minus, too
-- KEYS[4]  shared counts
-- KEYS[5]  the set with the successor's number, if there is a successor
-- KEYS[6]  fencing token, for a fenced lock with a successor only
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- ARGV[4]  number of this acquisition in the set
-- ARGV[5]  the successor's owner id, which belongs to one acquisition alone; missing: no successor
-- ARGV[6]  the successor's ttl, ms
-- ARGV[7]  the successor's number
-- ARGV[8]  how many tokens to reserve for the successor, for a fenced lock only
-- returns  0 when it was not held; {first token, or 0} when the successor has the lock now; else 1
--          and how many received the release message
local lock_hash, released, shared_counts = KEYS[1], KEYS[3], KEYS[4]
local successor_released, token_key, all_keys = KEYS[5], KEYS[6], KEYS
local owner, publish, memory_ttl_ms, number = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local successor, successor_ttl_ms, successor_number = ARGV[5], ARGV[6], ARGV[7]
local tokens = ARGV[8]

-- remember_release keeps the answer for copies of this release, and refuses late copies of the
-- acquisition.
local function remember_release(...)
  redis.call('sadd', released, ...)
  redis.call('pexpire', released, memory_ttl_ms)
end

local count = tonumber(redis.call('hget', lock_hash, owner))
if count then
  -- In all branches the first write is one that a full Redis allows.
  local shared = shared_count(shared_counts, owner, count)
  if shared > 0 then
    redis.call('pexpire', lock_hash, math.max(redis.call('pttl', lock_hash), 1))
    redis.call('hset', lock_hash, owner, shared)
    remember_release(number)
    return 1
  end
  -- A successor that has given up must not get the lock.
  local hands_off = successor
    and redis.call('sismember', successor_released, successor_number) == 0
  if hands_off then
    redis.call('pexpire', lock_hash, successor_ttl_ms)
    redis.call('hset', lock_hash, successor, 1)
    redis.call('hdel', lock_hash, owner)
  else
    redis.call('del', lock_hash)
  end
  remember_release(number)
  if hands_off then
    return {token_key and redis.call('incrby', token_key, tokens) - tokens + 1 or 0}
  end
  return 1 + (notify_free(all_keys, publish) or 0)
end
if redis.call('sismember', released, number) == 0 then
  redis.call('pexpire', released, memory_ttl_ms) -- a full Redis allows what follows
  remember_release(number, '-' .. number)
  return 0
end
-- From here on this is a copy of a release that was executed.
if redis.call('sismember', released, '-' .. number) == 1 then
  return 0
end
if successor and redis.call('hexists', lock_hash, successor) == 1 then
  -- The successor counts its lease from when the answered copy was sent.
  extend(lock_hash, successor_ttl_ms)
  return {token_key and (redis.call('get', token_key) or 0) - tokens + 1 or 0}
end
return 1
