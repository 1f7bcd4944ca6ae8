-- rwlock/readinfo: list the live readers.
-- uses     readers
-- KEYS[1]  lock hash
-- returns  {the hash's pttl, id, count, what its longest hold has left in ms, id, ...}
local hash, prefix = KEYS[1], prefix_of(KEYS[1])
local entries = redis.call('hgetall', hash)
local answer = {redis.call('pttl', hash)}
for i = 1, #entries, 2 do
  local id, count = entries[i], tonumber(entries[i + 1])
  if count and string.sub(id, -6) ~= ':write' then
    local left = life(prefix, id, count)
    if left > 0 then
      for _, value in ipairs({id, count, left}) do
        table.insert(answer, value)
      end
    end
  end
end
return answer
