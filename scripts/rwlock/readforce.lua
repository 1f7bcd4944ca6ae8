-- rwlock/readforce: take the lock from all readers.
-- uses     readers
-- KEYS[1]  lock hash
-- KEYS[2]  channel of releases
-- KEYS[3]  memory of this request: 1 entered, 2 left, 3 never to enter
-- KEYS[4]  claim of a waiting writer
-- KEYS[5]  shared counts
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- returns  the ids of the readers, 0 when there were none; a repetition: 1 in place of the ids
local hash, prefix = KEYS[1], prefix_of(KEYS[1])
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
local ids, entries = {}, redis.call('hgetall', hash)
redis.call('del', KEYS[3]) -- a full Redis allows what follows
for i = 1, #entries, 2 do
  local id, count = entries[i], tonumber(entries[i + 1])
  if count and string.sub(id, -6) ~= ':write' then
    if life(prefix, id, count) > 0 then
      table.insert(ids, id)
    end
    bury(hash, prefix, id, count)
    redis.call('hdel', KEYS[5], id)
  end
end
if redis.call('hget', hash, 'mode') == 'read' then
  redis.call('del', hash)
  redis.call(ARGV[1], KEYS[2], '0')
end
redis.call('set', KEYS[3], #ids > 0 and 1 or 0, 'px', ARGV[2])
return #ids > 0 and ids or 0
