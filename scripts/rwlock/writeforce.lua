-- rwlock/writeforce: take the lock from its writer. What it reads stays.
-- uses     readers
-- KEYS[1]  lock hash
-- KEYS[2]  channel of releases
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 never to enter
-- KEYS[4]  claim of a waiting writer
-- KEYS[5]  shared counts
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- returns  the id of the writer, 0 when there was none; a repetition: 1 in place of the id
local hash = KEYS[1]
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
local writer = writer_of(hash)
redis.call('del', KEYS[3]) -- a full Redis allows what follows
if writer then
  redis.call('hdel', hash, writer .. ':write')
  redis.call('hdel', KEYS[5], writer .. ':write')
  redis.call('hset', hash, 'mode', 'read')
  settle(hash, prefix_of(hash), math.huge)
  redis.call(ARGV[1], KEYS[2], '1')
end
redis.call('set', KEYS[3], writer and 1 or 0, 'px', ARGV[2])
return writer and { writer } or 0
