-- lock/list: tell what a lock's keys tell of it: its kind, and what stands in its hash.
-- uses     readers
-- KEYS[1]  lock hash
-- KEYS[2]  fencing token
-- KEYS[3]  fair queue
-- KEYS[4]  clients that take part in the fair queue. KEYS[2] to KEYS[4] are missing where they are in another cluster slot
-- returns  {kind, pttl, field, value, pttl of the field's holder, field, ...}. Dead readers are left out; the kind is "lock" if no key tells
local hash, kind = KEYS[1], 'lock'
local entries, pttl = redis.call('hgetall', hash), redis.call('pttl', hash)
local mode = redis.call('hget', hash, 'mode')
if mode == 'read' then
  kind = 'reader'
elseif mode == 'write' then
  kind = 'writer'
elseif KEYS[2] and redis.call('exists', KEYS[3]) + redis.call('exists', KEYS[4]) > 0 then
  kind = 'fair'
elseif KEYS[2] and redis.call('exists', KEYS[2]) == 1 then
  kind = 'fenced'
end
local answer, prefix = {kind, pttl}, prefix_of(hash)
for i = 1, #entries, 2 do
  local field, value, left = entries[i], entries[i + 1], pttl
  local reads = (kind == 'reader' or kind == 'writer') and tonumber(value) and string.sub(field, -6) ~= ':write'
  if reads then
    left = life(prefix, field, value)
  end
  if not reads or left > 0 then
    for _, part in ipairs({field, value, left}) do
      table.insert(answer, part)
    end
  end
end
return answer
