-- rwlock/read_info: list the live readers.
-- uses     lib/primary, rwlock/foreign, rwlock/hold_keys, rwlock/readers
-- KEYS[1]  lock_hash
-- returns  holders: the readers, each with the pttl of its longest hold
local lock_hash = KEYS[1]

prefer_primary(lock_hash)
local prefix = hold_prefix(lock_hash)
local foreign_data = no_rwlock(lock_hash)
if foreign_data then
  return foreign_data
end
local entries = redis.call('hgetall', lock_hash)
local holders = {}
for i = 1, #entries, 2 do
  local id, count = entries[i], tonumber(entries[i + 1])
  if count and string.sub(id, -6) ~= ':write' then
    local left = reader_ttl(prefix, id, count)
    if left > 0 then
      for _, value in ipairs({id, count, left}) do
        table.insert(holders, value)
      end
    end
  end
end
return {redis.call('pttl', lock_hash), holders}
