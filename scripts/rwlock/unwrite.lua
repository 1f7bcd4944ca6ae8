-- rwlock/unwrite: give back what a writer has, its claim too, or hand it on to an heir that waits to write. What it reads stays.
-- uses     readers, shared
-- KEYS[1]  lock hash
-- KEYS[2]  channel of releases
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 never to enter
-- KEYS[4]  claim of a waiting writer
-- KEYS[5]  shared counts
-- KEYS[6]  memory of the heir's request, if there is an heir
-- ARGV[1]  owner id
-- ARGV[2]  publish command
-- ARGV[3]  memory ttl, ms
-- ARGV[4]  1 to give back one count, a shared one if there is one; 0 to give back all that are not shared
-- ARGV[5]  1 to give back only what the memory says was entered
-- ARGV[6]  ttl, ms, if the hash has none
-- ARGV[7]  heir's id, which belongs to one acquisition alone; none: nobody is to inherit
-- ARGV[8]  heir's ttl, ms
-- returns  0 when it was not held; {0} when the heir has it now; else 1 and how many heard of the release
local hash, shared = KEYS[1], ARGV[4] == '1'
local field = ARGV[1] .. ':write'
local heir = ARGV[7] and ARGV[7] .. ':write'
local memory = redis.call('get', KEYS[3])
if memory == '3' then
  return 0
elseif memory == '2' then
  if heir and redis.call('hexists', hash, heir) == 1 then -- a copy: the heir counts its lease from the one that is answered
    raise(hash, ARGV[8])
    return {0}
  end
  return 1
end
local claimed = redis.call('get', KEYS[4]) == KEYS[3]
if claimed then
  redis.call('del', KEYS[4])
end
local count = tonumber(redis.call('hget', hash, field) or 0)
local others = shared_of(KEYS[5], field, count)
local own = shared and math.min(count, 1) or count - others
if own == 0 or (ARGV[5] == '1' and shared and not memory) then
  if count == 0 then
    redis.call('hdel', KEYS[5], field)
  end
  redis.call('del', KEYS[3])
  redis.call('set', KEYS[3], '3', 'px', ARGV[3])
  if claimed then -- readers that waited for this writer go on
    redis.call(ARGV[2], KEYS[2], '1')
  end
  return 0
end
-- In all branches the first write is one that a full Redis allows.
local answer = 1
if heir and own == count and redis.call('exists', KEYS[6]) == 0 and redis.call('hlen', hash) == 2 then -- else it reads, too
  redis.call('pexpire', hash, ARGV[8])
  redis.call('hset', hash, heir, 1)
  redis.call('hdel', hash, field)
  redis.call('del', KEYS[4])
  answer = {0}
elseif own < count then
  local ttl = redis.call('pttl', hash)
  redis.call('pexpire', hash, ttl > 0 and ttl or ARGV[6])
  redis.call('hset', hash, field, count - own)
  if shared then
    unshare(KEYS[5], field)
  end
else
  redis.call('hdel', hash, field)
  redis.call('hdel', KEYS[5], field)
  redis.call('hset', hash, 'mode', 'read')
  settle(hash, prefix_of(hash), math.huge)
  answer = 1 + redis.call(ARGV[2], KEYS[2], '1')
end
redis.call('set', KEYS[3], '2', 'px', ARGV[3])
return answer
