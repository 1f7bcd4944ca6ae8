-- fairlock/release: end what an id that belongs to one acquisition alone has of the lock.
-- That is its hold, which goes to the next owner, or its place in the queue. A late copy of the id's acquisition takes nothing.
-- uses     tell
-- KEYS[1]  lock hash
-- KEYS[2]  channel; a client's own, or that of one of Redisson's that waits, is this one, a colon and the id
-- KEYS[3]  memory of this id's release: 0 not held, 1 given back, or what was answered of one that holds now
-- KEYS[4]  queue
-- KEYS[5]  deadlines
-- KEYS[6]  ours
-- KEYS[7]  signs of life
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- ARGV[4]  its client
-- returns  0 when it was not held; else 1, or, if one of the same client's holds the lock now, its id, when it came to stand in the queue, and the ttl
local id = ARGV[1]
if redis.call('hdel', KEYS[1], id) == 1 then -- and with its only field the hash is gone
  local heir = pass(ARGV[2], false, ARGV[4]) or 1
  redis.call('set', KEYS[3], heir, 'px', ARGV[3])
  return heir
end
local memory = redis.call('get', KEYS[3])
if not memory then
  redis.call('del', KEYS[3])
  redis.call('set', KEYS[3], 0, 'px', ARGV[3])
  return withdraw(id, ARGV[2]) or 0
end
local heir, ttl = string.match(memory, '^(%S+) %S+ (%d+)$')
if not heir then
  return tonumber(memory)
end
if redis.call('hexists', KEYS[1], heir) == 0 then
  return 1
end
if redis.call('pttl', KEYS[1]) < tonumber(ttl) then -- the heir counts its lease from the copy that is answered
  redis.call('pexpire', KEYS[1], ttl)
end
return memory
