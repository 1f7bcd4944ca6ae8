-- fairlock/release: end what a private acquisition has of the lock.
-- That is its hold, which the next owner gets, or its place in the queue. A late copy of the
-- acquisition takes nothing. A key of another type beside the lock hash does not keep the hold.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel; a client's or a waiter's own channel is this one, a colon and its id
-- KEYS[3]  memory of this release: 0 not held, 1 released, or the answer that named the next holder
-- KEYS[4]  shared counts: hash of owner ids, each with how many of its counts belong to WithOwner
--          callers
-- KEYS[5]  queue
-- KEYS[6]  deadlines
-- KEYS[7]  our waiters
-- KEYS[8]  heartbeats
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- ARGV[4]  its client: an id of this life of it
-- returns  0 when it was not held; else 1, or, if a waiter of the same client holds the lock now, its
--          id, the time at which it joined the queue, and the ttl
local id = ARGV[1]
local alone = true -- no WithOwner caller holds the lock by this id
local others, fault = guarded(redis.call, 'hget', KEYS[4], id)
others = tonumber(others or 0)
if others > 0 then
  local count = tonumber(guarded(redis.call, 'hget', KEYS[1], id) or 0)
  alone = count == 0
  if count > others then
    redis.call('pexpire', KEYS[4], 86400000) -- a full Redis allows no hset as the first write
    redis.call('hset', KEYS[1], id, others)
    redis.call('set', KEYS[3], 1, 'px', ARGV[3])
    return 1
  end
end
local held, wrong
if alone then
  held, wrong = guarded(redis.call, 'hdel', KEYS[1], id) -- the only field: the hash goes with it
  fault = fault or wrong
end
if held == 1 then
  local heir
  heir, wrong = guarded(pass, ARGV[2], false, ARGV[4])
  heir = heir or 1
  redis.call('set', KEYS[3], heir, 'px', ARGV[3])
  return fault or wrong or heir
end
local memory = redis.call('get', KEYS[3])
if not memory then
  redis.call('del', KEYS[3])
  redis.call('set', KEYS[3], 0, 'px', ARGV[3])
  wrong = withdraw(id, ARGV[2])
  return fault or wrong or 0
end
local heir, ttl = string.match(memory, '^(%S+) %S+ (%d+)$')
if not heir then
  return tonumber(memory)
end
if redis.call('hexists', KEYS[1], heir) == 0 then
  return 1
end
if redis.call('pttl', KEYS[1]) < tonumber(ttl) then -- the heir's lease counts from the answered copy
  redis.call('pexpire', KEYS[1], ttl)
end
return memory
