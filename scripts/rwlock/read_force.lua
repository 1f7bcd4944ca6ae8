-- rwlock/read_force: free the lock of all its readers.
-- uses     lib/acl, lib/remember, lib/shared_counts
-- uses     rwlock/foreign, rwlock/hold_keys, rwlock/readers
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: of releases
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  claim_key: of a waiting writer
-- KEYS[5]  shared_counts
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- returns  ids: the ids of the readers, 0 when there were none.
--          A copy of this request gets the same answer
local lock_hash, channel, memory_key, shared_counts = KEYS[1], KEYS[2], KEYS[3], KEYS[5]
local publish, memory_ttl_ms = ARGV[1], ARGV[2]

local prefix = hold_prefix(lock_hash)
local memory = redis.call('get', memory_key)
if memory then
  return cjson.decode(memory)
end
local refusal = no_rwlock(lock_hash) or publish_denied(publish, channel)
if refusal then
  return refusal
end
local ids, entries = {}, redis.call('hgetall', lock_hash)
redis.call('del', memory_key) -- a full Redis allows what follows
for i = 1, #entries, 2 do
  local id, count = entries[i], tonumber(entries[i + 1])
  if count and string.sub(id, -6) ~= ':write' then
    if reader_ttl(prefix, id, count) > 0 then
      table.insert(ids, id)
    end
    remove_reader(lock_hash, prefix, id, count)
    forget_shared_count(shared_counts, id)
  end
end
if redis.call('hget', lock_hash, 'mode') == 'read' then
  redis.call('del', lock_hash)
  redis.call(publish, channel, '0')
end
return remember_list(memory_key, #ids > 0 and ids or 0, memory_ttl_ms)
